"""Who waits for whom: commits beside each other, alone, and beside what other programs do in the database."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from zlib import crc32

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.support.postgres_cases import Open, address, settled, through, until_waiting
from tests.support.waiting import LONG

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Pause,
    Published,
)
from holdfast.contract.rows import RunRow
from holdfast.contract.turns import StartRun
from holdfast.stores.postgres.statements import limit_lock
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.limits import ask, declare, enter
from holdfast.testing.conformance.samples import (
    NOW,
    entry,
    event,
    extra,
    given,
    message,
    new_run,
    parked,
    started,
    turn,
    wait,
)
from holdfast.testing.conformance.transactions import attempt_of, transacted


async def test_people_can_act_while_a_backup_runs(store: PostgresStore, database: str) -> None:
    """G14: pg_dump holds ACCESS SHARE on every table for as long as it takes."""
    run = await started(store, owner=None)
    with psycopg.connect(address(database)) as backup:
        backup.execute(f'LOCK TABLE "{store.schema}".commit_lock IN ACCESS SHARE MODE')
        [outcome] = await asyncio.wait_for(store.apply([Pause(target=run.id, at=NOW)]), LONG)
    assert outcome == Done(1)


async def test_a_transaction_of_somebody_keeps_no_worker_from_committing(
    store: PostgresStore, another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """G14: a caller encloses a start and takes his time; another caller starts the same id."""
    run, other = await started(store), await another()
    with psycopg.connect(address(database)) as theirs:
        await other.enclose(theirs, StartRun(run=new_run("same")))
        twin = asyncio.create_task(store.apply([StartRun(run=new_run("same"))]))
        await until_waiting(side)
        try:
            [done] = await asyncio.wait_for(store.apply([turn(run.key, state=parked())]), LONG)
            assert isinstance(done, Committed)
            [outcome] = await asyncio.wait_for(other.apply([Pause(target=run.id, at=NOW)]), LONG)
            assert isinstance(outcome, Delivered)
        finally:
            theirs.rollback()
            await settled(twin)


async def test_an_event_finds_its_waiter_whatever_isolation_the_role_has(
    another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """G8: with snapshots of a whole transaction the publisher does not see who came while it waited for the name."""
    isolated = "&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    one_store, other = await another(isolated), await another(isolated)
    run = await started(one_store)
    with psycopg.connect(address(database)) as holder:
        holder.execute(f'SELECT 1 FROM "{one_store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        begins = asyncio.create_task(one_store.apply([extra(run.key, state=parked(), waits=[wait()])]))
        await until_waiting(side)
        publishes = asyncio.create_task(other.apply([event("7")]))
        await until_waiting(side, 2)
        holder.rollback()
        await asyncio.gather(begins, publishes)
    assert await publishes == [Published(1)]
    assert await given(one_store, run) == [("event", "7")]


async def test_a_batch_on_a_slow_line_is_not_taken_for_one_whose_process_hangs(
    store: PostgresStore, database: str
) -> None:
    """G14: while a large parameter arrives, slowly, its client is not silent."""
    run = await started(store)
    await store.join("v", timedelta(seconds=1))
    with Proxy(address(database)) as proxy:
        slow = through(proxy, store)
        await slow.open()
        await slow.apply([message(run.id)])
        proxy.slow(200_000)
        sending = asyncio.create_task(slow.apply([message(run.id, secrets.token_hex(400_000))]))
        deadline = time.monotonic() + LONG
        while not sending.done() and time.monotonic() < deadline:
            await asyncio.to_thread(store.renew, "v")
            await asyncio.sleep(0.3)
        proxy.heal()
        collisions = slow._connections.writer.broken_before
        await settled(sending)
        await slow.close()
    assert not collisions
    assert isinstance(sending.result()[0], Delivered)


async def test_commits_leave_no_rows_behind(store: PostgresStore, side: psycopg.Connection[Any]) -> None:
    """A row per commit that others overtook would be there for ever."""
    run = await started(store)
    for _ in range(10):
        await asyncio.gather(*(store.apply([message(run.id)]) for _ in range(5)))
    await store.apply([message(run.id)])
    [(count,)] = side.execute(f'SELECT count(*) FROM "{store.schema}".commit_tokens').fetchall()
    assert count == 1


async def test_batches_that_use_kept_places_share_a_limit(
    store: PostgresStore, database: str, side: psycopg.Connection[Any]
) -> None:
    """S4-19 G8 They wait for no other that does the same, but for one that changes what is counted, and it for them."""
    await declare(store, at_once=100)
    runs = [await started(store) for _ in range(5)]
    for run in runs[:4]:
        await ask(store, run)
    kept, more = extra(runs[4].key, enters=[enter(counted=4)]), extra(runs[4].key, enters=[enter("a1")])
    place = (crc32(store.schema.encode()) - (1 << 31), limit_lock("api"))
    alone = store.commits.exclusive
    with psycopg.connect(address(database)) as other:
        other.execute("SELECT pg_advisory_xact_lock_shared(%s::int, %s::int)", place)
        [shared] = await asyncio.wait_for(store.apply([kept]), LONG)
        assert isinstance(shared, Committed)
        waits = asyncio.create_task(store.apply([more]))
        await until_waiting(side)
        other.rollback()
        await asyncio.wait_for(waits, LONG)
        other.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", place)
        waits = asyncio.create_task(store.apply([kept]))
        await until_waiting(side)
        other.rollback()
        await asyncio.wait_for(waits, LONG)
    assert store.commits.exclusive == alone


WRITERS: dict[str, Callable[[PostgresStore, RunRow], Awaitable[Any]]] = {
    "facts": lambda store, run: store.apply([turn(run.key, entries=[entry("a0", 1)])]),
    "a message": lambda store, run: store.apply([message(run.id)]),
    "an event": lambda store, run: store.apply([event()]),
    "a claim": lambda store, run: store.claim("w", NOW, 5, ["order"], stuck=False),
    "a claim of a run that is stuck": lambda store, run: store.claim("w", NOW, 5, ["order"]),
    "tasks": lambda store, run: store.claim_tasks("w", NOW, 5, ["q"], ["pay"]),
    "a transaction": lambda store, run: transacted(store, attempt_of(run), lambda _: "{}"),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
async def test_whoever_writes_waits_for_who_is_alone(
    writer: Callable[[PostgresStore, RunRow], Awaitable[Any]], store: PostgresStore, database: str
) -> None:
    """G5, G8: also when its statements are prepared, and planned once for all parameters."""
    run = await started(store)
    for _ in range(12):
        await writer(store, run)
    with psycopg.connect(address(database)) as alone:
        alone.execute(f'LOCK TABLE "{store.schema}".commit_lock IN EXCLUSIVE MODE')
        writing = asyncio.ensure_future(writer(store, run))
        done, _ = await asyncio.wait([writing], timeout=0.5)
        alone.rollback()
        await asyncio.wait_for(writing, LONG)
    assert not done


async def test_a_client_that_hangs_with_a_run_locked_is_ended(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: nobody wants to be alone, and everybody who has something for that run waits."""
    monkeypatch.setattr("holdfast.stores.postgres.workers.SILENCE", timedelta(seconds=1))
    run = await started(store)
    with contextlib.suppress(psycopg.errors.AdminShutdown), psycopg.connect(address(database)) as hanging:
        hanging.execute(f'SELECT 1 FROM "{store.schema}".commit_lock WHERE id < 0 FOR KEY SHARE')
        hanging.execute(f'SELECT 1 FROM "{store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        sending = asyncio.create_task(store.apply([message(run.id)]))
        deadline = time.monotonic() + LONG
        while not sending.done() and time.monotonic() < deadline:
            await asyncio.to_thread(store.renew, "w")
            await asyncio.sleep(0.3)
        done = sending.done()
        if not done:
            hanging.rollback()
        await settled(sending)
    assert done
    assert isinstance(sending.result()[0], Delivered)
