"""Drives an Execution as an engine would, with no store: random orders, recorded histories, replays from every cut."""

from __future__ import annotations

import gc
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.context.children import ChildVerb
from holdfast.context.code import WorkflowCode
from holdfast.context.steps import StepVerb
from holdfast.context.waits import SendVerb
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.definitions import Workflow
from holdfast.payloads import codec
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry, encode_entry
from holdfast.replay.execution import Execution
from holdfast.replay.journal import RunInfo
from holdfast.replay.turn import Ending, Outcome, Turn

START = 1_700_000_000_000_000
SECOND = 1_000_000
SEED = 77


class Unchecked(WorkflowCode):
    """A life whose result may be anything."""

    __slots__ = ()

    def check(self, result: bytes) -> None: ...


def execution(
    workflow: Workflow[Any, Any],
    *args: Any,
    errors: Any = None,
    guarded: bool = True,
    deadline: int | None = None,
    reopens: int = 0,
    check: bool = False,
) -> Execution:
    """Return a run that has not begun."""
    code = (WorkflowCode if check else Unchecked)(workflow, args, {})
    info = RunInfo("run-1", workflow.name, 1, SEED, 1, reopens, deadline)
    return Execution(info, code, deque(), START, errors or {}, guarded)


@dataclass
class Event:
    """One thing that happened to a run: what was called on its Execution."""

    verb: str
    args: tuple[Any, ...]
    at: int

    def happen(self, run: Execution) -> Turn:
        return getattr(run, self.verb)(*self.args, self.at)


@dataclass
class Recording:
    """A run that was driven live: its events, and after each one what it asked for and what was stored."""

    workflow: Workflow[Any, Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    turns: list[tuple[Any, ...]] = field(default_factory=list)
    stored: list[list[EntryRow]] = field(default_factory=list)
    unread: list[list[Message]] = field(default_factory=list)
    waiting: list[tuple[Any, ...]] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    outcome: Outcome | None = None

    @property
    def rows(self) -> list[EntryRow]:
        return self.stored[-1]

    @property
    def result(self) -> Any:
        assert self.outcome is not None, "the run did not end"
        assert self.outcome.ending is Ending.COMPLETED, self.outcome
        return msgspec.json.decode(self.outcome.payload or "null")

    def paths(self, kind: type[entries.Entry] | None = None) -> list[str]:
        """Return the readable locations of what is stored, in order."""
        names = paths(self.rows)
        return [names[row.seq] for row in self.rows if kind is None or row.kind == kind.kind]


def live(
    workflow: Workflow[Any, Any], *args: Any, seed: int = 0, messages: Any = (), stop: int = 2000, **options: Any
) -> Recording:
    """Drive a run to its end, or until it only waits; whatever is ready comes about in an order drawn from the seed."""
    dice = random.Random(seed)
    recording = Recording(workflow, args, options)
    run = execution(workflow, *args, **options)
    pending: dict[str, Any] = {}
    script = deque(messages)
    inbox: list[Message] = []
    now, n = START, 0

    def keep(turn: Turn) -> None:
        rows = recording.stored[-1] if recording.stored else []
        recording.stored.append(store(rows, turn))
        recording.turns.append(summary(turn))
        recording.logs += [text % args if args else text for _, text, args, _ in turn.logs]
        recording.outcome = turn.outcome
        inbox[:] = [message for message in inbox if message.n not in turn.consumed]
        recording.unread.append([message for message in inbox if message.kind in ("message", "event", "notice")])
        for verb in turn.started:
            pending[verb.location] = verb
        for verb in list(run.journal.open.values()):
            if isinstance(verb, ChildVerb):
                pending[verb.location] = verb
        for verb in turn.abandoned:
            pending.pop(verb.location, None)
        recording.waiting.append(waits(run))

    keep(run.begin())
    while recording.outcome is None and len(recording.events) < stop:
        due = run.next_due()
        choices: list[Any] = sorted(pending)
        if script:
            choices.append(None)
        if due is not None and (due <= now or not choices or dice.random() < 0.3):
            now = max(now, due)
            event = Event("fire", (), now)
        elif choices:
            now = now + dice.randrange(SECOND) if due is None else min(now + dice.randrange(SECOND), due - 1)
            choice = dice.choice(choices)
            if choice is None:
                n += 1
                inbox.append(_message(n, script.popleft(), now))
                event = Event("deliver", ([inbox[-1]],), now)
            elif isinstance(pending[choice], ChildVerb):
                n += 1
                verb = pending.pop(choice)
                ended = encode_entry(entries.ChildEnded("completed", msgspec.Raw(b'"child"')))
                event = Event("deliver", ([Message(n, InboxKind.CHILD_ENDED, verb.id, "", ended, now)],), now)
            else:
                event = Event("apply", (choice, answer(pending.pop(choice))), now)
        else:
            break
        recording.events.append(event)
        keep(event.happen(run))
    run.drop()
    return recording


def answer(verb: Any) -> entries.Entry:
    """Run what a verb asks for, and return the fact."""
    if isinstance(verb, SendVerb):
        return entries.SendDone()
    assert isinstance(verb, StepVerb)
    args, kwargs = verb.arguments()
    try:
        return entries.StepCompleted(1, msgspec.Raw(codec.encode(verb.activity.function(*args, **kwargs))))
    except Exception as error:
        return entries.StepFailure(1, error_to_data(error))


def assert_replays(recording: Recording, workflow: Workflow[Any, Any] | None = None) -> None:
    """Replay from the history after every event and go on with the same events; everything must come out the same."""
    for cut in range(len(recording.stored)):
        if cut == len(recording.stored) - 1 and recording.outcome is not None:
            continue  # an ended run may have forgotten what a replay would need
        shaken = shake(cut)
        run = execution(workflow or recording.workflow, *recording.args, **recording.options)
        turn = run.begin(recording.stored[cut], recording.unread[cut])
        assert turn.outcome is None, (cut, turn.outcome)
        assert (turn.effects, turn.carried) == (None, ()), (cut, turn)
        assert turn.entries == [], (cut, turn.entries)
        assert not any([turn.trims, turn.sends, turn.children, turn.logs, turn.abandoned]), (cut, turn)
        assert waits(run) == recording.waiting[cut], cut
        for at in range(cut, len(recording.events)):
            turn = recording.events[at].happen(run)
            assert summary(turn) == recording.turns[at + 1], (cut, at)
        run.drop()
        del shaken


def assert_deterministic(workflow: Workflow[Any, Any], *args: Any, seeds: Any = range(6), **options: Any) -> None:
    """Run with several orders of events; each must replay alike from every cut, at once and again."""
    for seed in seeds:
        assert_replays(live(workflow, *args, seed=seed, **options))


def finished(workflow: Workflow[Any, Any], rows: list[EntryRow], *args: Any, **options: Any) -> tuple[Turn, list[Any]]:
    """Replay a history and drive the run on to its end, the oldest call first; return its last turn and what is stored.

    Between any two turns it is dropped and replayed.
    """
    stored, now = list(rows), max([START, *(row.at for row in rows)])
    while True:
        run = execution(workflow, *args, **options)
        turn = run.begin(stored)
        stored = store(stored, turn)
        open_ = [verb for verb in run.journal.open.values() if isinstance(verb, StepVerb | SendVerb)]
        if turn.outcome is None and open_:
            now += SECOND
            turn = run.apply(open_[0].location, answer(open_[0]), now)
            stored = store(stored, turn)
        elif turn.outcome is None and (due := run.next_due()) is not None:
            now = max(now, due)
            turn = run.fire(now)
            stored = store(stored, turn)
        run.drop()
        if turn.outcome is not None:
            return turn, stored
        assert run.journal.next_seq > 1
        assert stored[-1].at == now, "the run waits for something that this driver does not bring about"


def resumed(recording: Recording, workflow: Workflow[Any, Any], *args: Any, cut: int = -1) -> tuple[Turn, Execution]:
    """Replay a recorded history, as far as it went, on other code."""
    run = execution(workflow, *(args or recording.args))
    return run.begin(recording.stored[cut], recording.unread[cut]), run


def store(rows: list[EntryRow], turn: Turn) -> list[EntryRow]:
    """Return what is stored after a turn: trims first, then new entries, as the store's contract says."""
    kept = [row for row in rows if not any(low <= row.location < high for low, high in turn.trims)]
    return kept + turn.entries


def paths(rows: list[EntryRow]) -> dict[int, str]:
    """Return the readable path of each row, by seq."""
    journal = execution(_NOTHING).journal
    for row in rows:
        if row.kind == entries.Name.kind:
            journal.names.add(decode_entry(row.kind, row.data).name)
    return {row.seq: journal.names.path(row.location) for row in rows}


def summary(turn: Turn) -> tuple[Any, ...]:
    """Return a turn as plain data, to compare."""
    return (
        list(turn.entries),
        [verb.location for verb in turn.started],
        [verb.location for verb in turn.abandoned],
        list(turn.sends),
        list(turn.children),
        list(turn.trims),
        list(turn.consumed),
        [(level, text % args if args else text, scope) for level, text, args, scope in turn.logs],
        turn.outcome,
        turn.effects,
        list(turn.carried),
    )


def waits(run: Execution) -> tuple[Any, ...]:
    """Return what a run waits for."""
    return sorted(run.journal.open), run.next_due()


def shake(seed: int) -> list[Any]:
    """Fill the heap with holes, so that addresses differ from run to run."""
    dice = random.Random(seed)
    junk = [[object() for _ in range(dice.randrange(1, 60))] for _ in range(40)]
    dice.shuffle(junk)
    gc.collect(0)
    return junk[::2]


def _message(n: int, script: Any, now: int) -> Message:
    if script in ("cancel", "cancel and undo"):
        return Message(n, "cancel", "", "", '{"compensate":true}' if script != "cancel" else "", now)
    name, payload, kind = script if len(script) == 3 else (*script, "message")
    return Message(n, kind, name, f"m{n}", codec.encode(payload).decode(), now)


async def _nothing(ctx: Any) -> None: ...


_NOTHING: Workflow[Any, Any] = Workflow(_nothing, "nothing", "1", False)
