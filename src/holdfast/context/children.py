"""Child runs: how one is started, exactly once, and what its end means to its parent."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Generator, Mapping
from typing import Any

import msgspec

from holdfast.context.notes import encode_attributes
from holdfast.contract.turns import NO_OPTIONS, NewRun, Parent, RunOptions, StartChild
from holdfast.definitions import Workflow, check_run_id, function_name
from holdfast.errors import BadInput, ChildFailed, HoldfastError
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.entry import encode_entry
from holdfast.replay.failures import located
from holdfast.replay.journal import Journal, Verb
from holdfast.replay.location import Scope, check_name

_REFUSALS = ("full", "ancestors")
"""Why there is no place for a child."""


class ChildVerb(Verb):
    """A child run under way."""

    __slots__ = ("id", "propagate", "refused", "result_type", "scope")
    word = "child"
    on_its_own = True
    id: str
    propagate: bool
    refused: str
    result_type: Any
    scope: Scope

    def forget(self) -> None:
        if self.journal.kids and self.journal.kids.get(self.id) is self:
            del self.journal.kids[self.id]

    def apply(self, entry: Any) -> None:
        self.scope.note_end(self.location)
        if entry.status == "completed":
            try:
                self.set_result(codec.decode(bytes(entry.result), self.result_type, f"the result of child {self.id!r}"))
            except HoldfastError as error:
                self.set_exception(error)
            return
        cause = self.journal.error(entry.error) if entry.error is not None else None
        failure = ChildFailed(self.id, entry.status, f"{type(cause).__name__}: {cause}" if cause else "")
        failure.__cause__ = cause
        if self.propagate:
            self.set_exception(failure)
        else:
            self.set_result(located(failure, self.location))


class NeverChild(Awaitable[Any]):
    """The child of a run that goes no further."""

    def __init__(self, never: Awaitable[Any], id: str) -> None:
        self._never = never
        self.id = id

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._never.__await__()


def child(
    journal: Journal,
    scope: Scope,
    workflow: Workflow[Any, Any] | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    said: Mapping[str, Any],
    options: RunOptions = NO_OPTIONS,
) -> ChildVerb:
    """Start a child, or find it in history; `said` has the options of `ctx.child` that were given."""
    if isinstance(workflow, Workflow):
        name, version, result_type = workflow.name, workflow.version, workflow.result_type
        workflow.refuse_ambiguous("ctx.child", said, len(args))
        encoded, digest = workflow.encode_input(args, kwargs)
    else:
        name, version, result_type = workflow, "", Any
        encoded, digest = _input_of_unknown(workflow, args, kwargs)
    location = journal.locate(scope, check_name(name, "workflow name"), False)
    verb = ChildVerb(journal, location)
    verb.id = _child_id(journal, location, said.get("id"))
    verb.result_type, verb.propagate, verb.refused = result_type, said.get("propagate", journal.run.propagate), ""
    call = entries.ChildBegun(verb.id, digest)
    refusals: dict[str, str] = {}
    if isinstance(workflow, Workflow) and workflow.flow and journal.recorded(location, call.kind) is None:
        options = msgspec.structs.replace(options, lane=workflow.lane(encoded))
        refusals = {why: encode_entry(msgspec.structs.replace(call, refused=why)) for why in _REFUSALS}
    recorded = journal.begin(location, call)
    if journal.violation is not None:
        return verb
    if recorded is None:
        run = NewRun(
            id=verb.id,
            workflow=name,
            version=version,
            input=encoded,
            digest=digest,
            seed=journal.run.seed ^ hash_location(location),
            at=journal.loop.now,
            parent=Parent(journal.run.key, journal.run.id, location),
            options=options,
            hooked=isinstance(workflow, Workflow) and workflow.told_of_cancels,
        )
        taken = encode_entry(msgspec.structs.replace(call, refused="taken"))
        child = StartChild(run=run, location=location, seq=journal.next_seq - 1, taken=taken, refusals=refusals)
        journal.turn.start_child(child)
    elif (recorded.id, recorded.digest) != (verb.id, digest):
        journal.mismatch(location, f"child {recorded.id!r} with other input", f"child {verb.id!r}")
        return verb
    else:
        verb.refused = recorded.refused
        journal.turn.start(verb)
    verb.scope = scope
    scope.note_call(location)
    journal.open[location] = verb
    if journal.kids is None:
        journal.kids = {}
    journal.kids.setdefault(verb.id, verb)
    return verb


def _input_of_unknown(workflow: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int]:
    """Return the input of a child whose code is not here, with its digest."""
    if not isinstance(workflow, str):
        raise BadInput(f"ctx.child needs a workflow or its name, not {function_name(workflow)!r}")  # type: ignore[arg-type]  # whatever it is
    if args:
        raise BadInput(f"child {workflow!r} is named by a string: pass its arguments by keyword")
    data, digest = codec.encode_with_digest(kwargs, f"the input of child {workflow!r}")
    return data.decode(), digest


def child_options(cancel_with_parent: Any, priority: Any, attributes: Mapping[str, Any] | None) -> RunOptions:
    """Return what is said about a child when it is started."""
    if not isinstance(cancel_with_parent, bool) or not isinstance(priority, int) or isinstance(priority, bool):
        raise BadInput(
            "ctx.child(): cancel_with_parent is a bool and priority a whole number, "
            f"not {cancel_with_parent!r} and {priority!r}; a parameter of the child's own of that name goes by position"
        )
    encoded = encode_attributes(attributes) if attributes else {}
    if not (cancel_with_parent or priority or encoded):
        return NO_OPTIONS
    return RunOptions(
        cancel_with_parent=cancel_with_parent,
        priority=priority,
        attributes={name: text for name, text in encoded.items() if text is not None},
    )


def hash_location(location: str) -> int:
    """Return a number that differs from call to call, for the seeds of children."""
    return int.from_bytes(location.encode()[-7:], "big")


def _child_id(journal: Journal, location: str, given: str | None) -> str:
    if given is not None:
        return check_run_id(given)
    before = journal.recorded(location, entries.ChildBegun.kind)
    if before is not None:
        return str(before.id)
    run = journal.run
    return derived_id(run.id, run.generation, run.reopens, journal.names.path(location))


def derived_id(run_id: str, generation: int, reopens: int, path: str) -> str:
    """Return the id of a child that the code does not name: made of the place of its call."""
    place = path.replace("/", ":").replace("#", "=")
    life = f"{generation}:" if generation else ""
    again = f"=r{reopens}" if reopens else ""
    readable = f"{run_id}:{life}{place}{again}"
    try:
        return check_run_id(readable)
    except BadInput:
        return f"child-{uuid.uuid5(uuid.NAMESPACE_URL, readable)}"
