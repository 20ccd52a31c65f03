"""What must be true of a world of many runs when all is over: nothing is lost, nothing is done twice, nobody hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
from tests.simulation.many_books import CONSERVED, Books, undoing
from tests.simulation.many_nemesis import TICKS, UNIQUE, Nemesis
from tests.simulation.many_workflows import CLERK, COLLECTORS, fits
from tests.support.waiting import LONG

from holdfast import Engine, Run, Status
from holdfast.clock import from_datetime, micros
from holdfast.errors import CannotReopen, UniqueConflict
from holdfast.schedules.times import run_id
from holdfast.testing.invariants import violations

SERVANTS = {*COLLECTORS, CLERK}
_ON_AND_OFF = {"pause", "resume", "retry", "rerun"}
MAY_FAIL = {"ValueError", "JoinError", "RaceError", "RunTimeout"}


async def settle(engine: Engine, found: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Return what is still wrong after all the time it needs."""
    deadline = asyncio.get_running_loop().time() + LONG
    while True:
        wrong = await found()
        if not wrong or asyncio.get_running_loop().time() > deadline:
            return wrong
        await asyncio.sleep(0.01)


async def check(nemesis: Nemesis, engine: Engine) -> None:
    """Bring everything to its end and compare it with the books."""
    books = nemesis.books
    if stuck := await _bring_to_an_end(nemesis, engine):
        books.wrong += stuck
        return
    for each in SERVANTS:
        await engine.get(each).send("stop" if each != CLERK else "ask", "stop")
    runs: list[Run] = []

    async def open_runs() -> list[str]:
        runs[:] = await engine.runs(limit=1000)
        return [f"{run.id} hangs: {run.status} {run.waiting_for!r} {run.error}" for run in runs if not _ended(run)]

    if hanging := await settle(engine, open_runs):
        books.wrong += hanging
        return
    for key in UNIQUE:
        await engine.start(nemesis.workflows[0], [], [], unique_key=key)  # nobody has it any more
    for run in runs:
        books.wrong += [f"{run.id}: {problem}" for problem in _of_run(nemesis, run)]
        books.wrong += [f"{run.id}: {problem}" for problem in await _of_undoing(books, engine, run)]
        verdict = await engine.audit.verify_evidence(run.id)
        if not verdict.ok or verdict.checked != books.evidence[run.key]:
            books.wrong.append(f"{run.id}: evidence {verdict}, {books.evidence[run.key]} items were added")
    verdict = await engine.audit.verify()
    if not verdict.ok or verdict.checked != books.audits:
        books.wrong.append(f"audit: {verdict}, {books.audits} acts took effect")
    books.wrong += [*_of_ticks(nemesis), *_of_tables(books, nemesis.path)]
    books.wrong += await violations(engine.store)


async def _bring_to_an_end(nemesis: Nemesis, engine: Engine) -> list[str]:
    """Let paused runs go on and failed ones try again, until all but the servants have ended and those wait."""

    async def busy() -> list[str]:
        hanging = []
        for run in await engine.runs(limit=1000):
            stopped = run.id in SERVANTS and run.status is Status.CANCELLED
            if stopped or (run.status is Status.PAUSED and await _is_to_stay_paused(engine, run)):
                await engine.get(run.id).resume()
            if run.id in SERVANTS:
                idle = run.status is Status.SUSPENDED and run.due_at is None  # it has read what it was sent
            else:
                idle = run.status.is_terminal
            if not idle:
                hanging.append(f"{run.id} hangs: {run.status} {run.waiting_for!r} {run.owner} {run.error}")
        queued = (await engine.store.counts()).events
        hanging += [f"{queued[name]} {name!r} are queued and somebody waits" for name in CONSERVED if queued.get(name)]
        schedules = await engine.schedules.list()
        return hanging + [f"schedule {each.id} waits for {each.next_at}" for each in schedules if each.next_at]

    for again in (True, True, False):
        if hanging := await settle(engine, busy):
            return hanging
        for run in await engine.runs(limit=1000, status="failed"):
            if again:
                try:
                    await engine.get(run.id).retry()
                except (CannotReopen, UniqueConflict):
                    continue
    return []


async def _is_to_stay_paused(engine: Engine, run: Run) -> bool:
    """Whether the last that was done to a run is a pause without an end."""
    acts = [act for act in await engine.audit.records(target=run.id, limit=1000) if act.action in _ON_AND_OFF]
    return bool(acts) and acts[-1].action == "pause" and "until" not in (acts[-1].detail or ())


def _ended(run: Run) -> bool:
    return run.status.is_terminal


def _of_run(nemesis: Nemesis, run: Run) -> Iterator[str]:
    plan = nemesis.plans.get(run.id) or (run.input["plan"] if run.workflow == "saga" and not run.generation else None)
    if run.status is Status.COMPLETED and plan is not None and not fits(plan, run.output):
        yield f"came out as {run.output}, its plan was {plan}"
    if run.status is Status.FAILED and (run.error is None or run.error.type.rpartition(".")[2] not in MAY_FAIL):
        yield f"failed: {run.error}"
    for (of, token, attempt), count in nemesis.books.bodies_of.items():
        if of == run.id and count > 1 + run.reopened:
            yield f"attempt {attempt} of {token} was executed {count} times, it was reopened {run.reopened} times"


async def _of_undoing(books: Books, engine: Engine, run: Run) -> list[str]:
    history = await engine.store.history(run.key)
    if await engine.store.get(run.id) is None:
        return []  # purged while we looked
    added, ended = undoing(history)
    wrong = []
    if not _in_order(added, ended, run.reopened):
        wrong.append(f"registered {added}, undone {ended}")
    if run.status is Status.COMPLETED and ended:
        wrong.append(f"completed, but undone {ended}")
    if run.status is Status.FAILED and len(ended) != len(added):
        wrong.append(f"failed, registered {added}, undone only {ended}")
    if (expected := _registered(books, run)) != added:
        wrong.append(f"its commits registered {expected}, its history has {added}")
    return wrong


def _in_order(added: list[str], ended: list[str], reopened: int) -> bool:
    """Whether what was undone was so in reverse; each reopening lets what failed to be undone be undone once more."""
    places = [added.index(each) for each in ended if each in added]
    if not reopened:
        return ended == added[::-1][: len(ended)]
    turns = sum(later > earlier for earlier, later in pairwise(places))
    return len({*places}) == len(ended) and turns <= reopened


def _registered(books: Books, run: Run) -> list[str]:
    """Return what a run registered to be undone, by the books."""
    stack: list[tuple[int, str]] = []
    carried: list[str] = []
    for who, what, data in books.stacks:
        if who not in (run.key, run.id):
            continue
        if what == "renewed":
            carried, stack = [args for _, args in stack], []
        elif what == "cut":
            stack = [(seq, args) for seq, args in stack if seq < data]
        else:
            stack.append(data)
    registered = [args for _, args in stack]
    return registered if registered[: len(carried)] == carried else [f"not carried over: {carried}"]


def _of_keys(books: Books, ids: dict[int, str]) -> Iterator[str]:
    for key, results in books.effects.items():
        undone = sum(books.undone[owner] + books.undone[ids[owner]] for owner in books.owners[key])
        if len(results) > 1 + undone:
            yield f"the effect of {key} was made {len(results)} times and undone {undone} times: {results}"


def _of_ticks(nemesis: Nemesis) -> Iterator[str]:
    ticked = nemesis.books.ticked
    for name, (first, every) in nemesis.scheduled.items():
        begin, step = from_datetime(first, "first"), micros(every)
        started = Counter({id: count for id, count in ticked.items() if id.startswith(f"{name}:")})
        ticks = [run_id(name, begin + step * at) for at in range(TICKS + 1)]
        expected = Counter(id for id in ticks if id >= min(started, default="~"))  # it may have been put late
        if started != expected:
            yield f"{name}: missed {expected - started}, too many {started - expected}"


def _of_tables(books: Books, path: Path) -> Iterator[str]:
    """Count every payload wherever it may be, and look for what ended runs left behind."""
    database = apsw.Connection(str(path))

    def rows(statement: str) -> list[Any]:
        return database.execute(statement).fetchall()

    for table in ("event_waiters", "idempotency_waiters", "heartbeats"):
        if left := rows(f"SELECT * FROM {table} WHERE run NOT IN (SELECT key FROM runs WHERE ended IS NULL)"):
            yield f"left in {table}: {left}"
    if held := rows("SELECT activity, key, run FROM idempotency_keys WHERE result IS NULL"):
        yield f"keys that are still held: {held}"
    counted = dict(rows("SELECT name, pending FROM event_queues WHERE pending != 0"))
    if counted != dict(rows("SELECT name, count(*) FROM events GROUP BY name")):
        yield f"queues are said to be {counted} long, and are not"
    places = Counter[str]()
    for place in (
        "SELECT payload FROM events WHERE name != 'news'",
        "SELECT payload FROM inbox WHERE kind IN ('event', 'message')",
        "SELECT payload FROM dead_letters WHERE kind = 'event' AND outcome = ''",
    ):
        places.update(payload.strip('"') for (payload,) in rows(place))
    received = {(run, n): payload.strip('"') for run, n, payload in rows("SELECT run, n, payload FROM received")}
    ids = dict(rows("SELECT key, id FROM started"))
    database.close()
    taken: dict[str, Counter[int]] = {}
    for run, n in books.consumed:
        # One that was put and taken in the same commit was never in the table.
        token = received[run, n] if (run, n) in received else books.delivered[run, n]
        taken.setdefault(token, Counter())[run] += 1
    for (token, id), count in books.given_back.items():
        taken[token].subtract({key: count for key in ids if ids[key] == id})
    yield from _of_payloads(books, places, taken)
    collectors = [key for key in ids if ids[key] in COLLECTORS]
    for token in (token for token, name in books.names.items() if name == "news"):
        by = taken.get(token, Counter())
        if missed := {ids[key]: by[key] for key in collectors if by[key] != books.issued[token]}:
            yield f"news {token} was published {books.issued[token]} times, and taken by {missed}"
    yield from _of_keys(books, ids)


def _of_payloads(books: Books, places: Counter[str], taken: dict[str, Counter[int]]) -> Iterator[str]:
    for token, issued in books.issued.items():
        name, by = books.names[token], taken.get(token, Counter())
        if name == "news":
            if twice := {run: count for run, count in by.items() if count > issued}:
                yield f"news {token}, published {issued} times, was taken more often by {twice}"
        elif name in CONSERVED and (found := sum(by.values()) + places[token]) != issued:
            yield f"{name} {token} was issued {issued} times, taken {dict(by)}, is in {places[token]} places: {found}"
