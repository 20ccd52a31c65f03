"""Driving a run on its own key space: once, as far as it can go; and waking runs that are due."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Clock, Instant, from_datetime, micros, new_id, new_seed, to_datetime
from holdfast.definitions import Registry, Workflow
from holdfast.errors import NotAsExpected, NotOurDatabase, RunConflict
from holdfast.kv import keys
from holdfast.kv.alarms import wake_at, wake_by
from holdfast.kv.driver import Driver, answer
from holdfast.kv.options import DriveOptions
from holdfast.kv.run import DrivenRun, ended_standing
from holdfast.kv.space import Changes, Space, read_value
from holdfast.kv.standing import ENDED, About, Standing, StoredMessage, is_paused
from holdfast.limits import Limit, Limits
from holdfast.payloads.codec import ErrorData, error_to_data

R = TypeVar("R")
Context = Callable[[], Mapping[str, Any]]
_error = msgspec.json.Decoder(ErrorData)
_OTHER_CODE = micros(timedelta(minutes=1))
"""After how many microseconds a run that is blocked is tried again."""


async def drive(
    driver: Driver,
    workflow: Workflow[..., R],
    /,
    *args: Any,
    id: str | None = None,
    timeout: timedelta | None = None,
    clock: Clock | None = None,
    errors: Iterable[type[BaseException]] = (),
    activities: Iterable[Any] = (),
    limits: Sequence[Limit] = (),
    context: Context | None = None,
    lifespan: timedelta | None = None,
    patience: timedelta = timedelta(0),
    cancel_grace: timedelta = timedelta(seconds=60),
    max_steps: int = 1_000,
    max_threads: int = 32,
) -> Standing[R]:
    """Drive the run of a key space as far as it comes, and say where it stands.

    An empty key space begins a run with these arguments; later calls may leave them out. Every turn of the run is one
    batch, written before anything that it asks for is done; a step that is recorded is not run again. The alarm of the
    driver says when to call this again; calling it early or often does no harm.

    Args:
        id: names the run to the outside world (the idempotency keys of its steps); made up if it is left out.
        timeout: how long the run may take from its beginning.
        context: asked before each attempt what the body should know of the world, as `Engine(context=...)`.
        lifespan: after this the run is given up in good order: what is under way is handed back and is begun again by
            the next call.
        patience: a retry or a sleep that ends within this is waited for, instead of returning; not by a run that
            receives messages, which are looked for when it stops.
        cancel_grace: how long code that was cancelled may take to stop.

    Raises:
        RunConflict: the run was begun with other arguments or another id.
        NotOurDatabase: the key space has the run of another workflow, or keys of another program.
        SchemaTooNew: a newer holdfast wrote it.
        StoreError: the store failed; what was durable before is, and the next call goes on from there.
    """
    _check(workflow)
    registry = Registry((), errors, activities)
    space = Space(driver)
    rows = await space.load()
    clock = clock or Clock()
    now = clock.now()
    about, given = _begun(space, workflow, args, id, timeout, now)
    already = await _stands(space, about, workflow, now)
    if already is not None:
        return already
    options = DriveOptions(
        clock, given, Limits(limits), registry.errors, registry.activities, context, lifespan,
        micros(patience, "patience"), micros(cancel_grace, "cancel_grace"), max_steps, max_threads,
    )  # fmt: skip
    if given:
        space.stored[keys.INPUT] = given
    standing = await DrivenRun(space, about, workflow, options).drive(rows)
    return await _with_alarm(space, standing, now)


@functools.lru_cache(maxsize=1000)
def _check(workflow: Workflow[..., Any]) -> None:
    """Refuse what is no workflow, or whose code asks the outside world, as an engine does; once for each."""
    Registry([workflow])


def _begun(
    space: Space,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    run_id: str | None,
    timeout: timedelta | None,
    now: Instant,
) -> tuple[About, bytes]:
    """Return what is known of the run, and the input with which it begins now, if it does."""
    about = space.about
    if about is None:
        encoded, digest = workflow.encode_input(args, {})
        about = About(
            id=run_id or new_id(), workflow=workflow.name, version=workflow.version, created=now, seed=new_seed(),
            digest=digest, timeout=None if timeout is None else micros(timeout, "timeout"),
        )  # fmt: skip
        return about, encoded.encode()
    if about.workflow != workflow.name:
        raise NotOurDatabase(
            f"the key space has run {about.id} of workflow {about.workflow!r}, not of {workflow.name!r}; "
            "use a key space of its own for each run"
        )
    if run_id is not None and run_id != about.id:
        raise RunConflict(about.id, f"has this key space, which is not one of run {run_id!r}")
    if args and workflow.encode_input(args, {})[1] != about.digest:
        raise RunConflict(about.id, "was begun with other arguments")
    return about, b""


async def _stands(space: Space, about: About, workflow: Workflow[..., R], now: Instant) -> Standing[R] | None:
    """Return where a run stands that is not to be driven: it has ended, is paused, or this driver is to leave it."""
    state, messages = space.state, space.messages()
    if state is not None and state.state in ENDED:
        await wake_at(space.driver, None)
        return _stored_end(space, about, workflow, state.state)
    try:
        if await _is_paused(space, messages):
            return await _with_alarm(space, Standing("paused", about.id), now)
        return Standing("evicted", about.id) if await _asked_to_leave(space, messages) else None
    except NotAsExpected as refused:
        return Standing("evicted", about.id, error=error_to_data(refused))


def _stored_end(space: Space, about: About, workflow: Workflow[..., R], state: str) -> Standing[R]:
    error = space.stored.get(keys.ERROR)
    data = read_value(_error, keys.ERROR, error) if error is not None else None
    return ended_standing(about, workflow, state, space.stored.get(keys.OUTPUT), data)


async def _is_paused(space: Space, messages: Sequence[tuple[bytes, StoredMessage]]) -> bool:
    """Tell whether the run is paused; what was said of that before it was let go on is deleted."""
    if is_paused(messages):
        return True
    await _delete(space, [key for key, message in messages if message.kind in ("pause", "resume")])
    return False


async def _asked_to_leave(space: Space, messages: Sequence[tuple[bytes, StoredMessage]]) -> bool:
    asked = [key for key, message in messages if message.kind == "evict"]
    await _delete(space, asked)
    return bool(asked)


async def _delete(space: Space, found: Iterable[bytes]) -> None:
    changes = Changes()
    for key in found:
        space.delete(changes, key)
    await space.commit(changes)


async def _with_alarm(space: Space, standing: Standing[R], now: Instant) -> Standing[R]:
    """Have the run driven when it can go on, and at once for what came after it had looked for the last time."""
    if standing.state == "evicted" and standing.until is None:
        return standing  # another driver has the run, and its alarm
    if standing.state == "blocked":
        return await _blocked(space.driver, standing, now)
    await wake_at(space.driver, standing.until)
    if not standing.ended and (await space.new_messages() or await space.is_taken()):
        await wake_by(space.driver, now)
    return standing


async def _blocked(driver: Driver, standing: Standing[R], now: Instant) -> Standing[R]:
    """Keep the alarm, in case there is other code later, but not due for as long as that takes at least."""
    alarm = await answer(driver.get_alarm())
    if alarm is None:
        return standing
    until = max(alarm, to_datetime(now + _OTHER_CODE))
    await wake_at(driver, until)
    return replace(standing, until=until)


async def drive_due(
    spaces: Mapping[str, Driver],
    drive_one: Callable[[str, Driver], Awaitable[Standing[Any]]],
    clock: Clock | None = None,
) -> dict[str, Standing[Any]]:
    """Drive the runs whose alarm is due, the earliest first, and return where each stands.

    `spaces` are key spaces by the names of their runs. What one of them raises is raised after the others were driven.
    """
    now = (clock or Clock()).now()
    due: list[tuple[Instant, str]] = []
    standings: dict[str, Standing[Any]] = {}
    failed: list[Exception] = []
    for name, driver in spaces.items():
        try:
            alarm = await answer(driver.get_alarm())
        except Exception as error:
            error.add_note(f"raised while the alarm of run {name!r} was read")
            failed.append(error)
            continue
        if alarm is not None and from_datetime(alarm) <= now:
            due.append((from_datetime(alarm), name))
    for _, name in sorted(due):
        try:
            standings[name] = await drive_one(name, spaces[name])
        except Exception as error:
            error.add_note(f"raised while run {name!r} was driven")
            failed.append(error)
    if failed:
        raise failed[0] if len(failed) == 1 else ExceptionGroup("some runs could not be driven", failed)
    return standings
