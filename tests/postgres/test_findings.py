"""What a reviewer found wrong with the PostgreSQL store: each a test that fails until it is put right."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.postgres.proxy import Proxy
from tests.support.waiting import LONG, eventually

from holdfast.context.waits import check_message_id
from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Operation,
    Pause,
    Published,
    Purge,
    Started,
    Terminate,
)
from holdfast.contract.rows import LetterFilter, RunRow, Status
from holdfast.contract.turns import Renewal, RunOptions, StartRun, TakeKey
from holdfast.engine.worker.committer import Committer
from holdfast.errors import AuthFailed, BadData, BadInput, CannotOpen, StepTimeout, StoreError
from holdfast.stores.postgres.connections import ANSWER, Line
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    ended,
    entry,
    event,
    extra,
    given,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
    unread,
    wait,
)
from holdfast.testing.conformance.transactions import attempt_of, transacted

Open = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture
async def another(database: str) -> AsyncIterator[Open]:
    """Give what opens stores on one database, by what is added to its address; they are closed afterwards."""
    stores: list[PostgresStore] = []

    async def open_one(added: str = "", **settings: Any) -> PostgresStore:
        store = PostgresStore(f"{database}{added}", **settings)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await asyncio.wait_for(store.close(), LONG)


@pytest.fixture
async def store(another: Open) -> PostgresStore:
    return await another()


def address(database: str) -> str:
    """Give the address of a database as libpq has it."""
    return database.partition("schema=")[0].rstrip("?&")


@pytest.fixture
def side(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a connection that watches, or does what somebody else does."""
    with psycopg.connect(address(database), autocommit=True) as connection:
        yield connection
        connection.rollback()


async def until_waiting(side: psycopg.Connection[Any], count: int = 1) -> None:
    """Wait until so many sessions wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
        "AND application_name = 'holdfast'"
    )
    await eventually(lambda: side.execute(query).fetchall()[0][0] >= count)


def cut(connection: Any) -> None:
    """Break a connection for its client; the server reads on what it was sent."""
    with socket.socket(fileno=socket.dup(connection.pgconn.socket)) as half:
        half.shutdown(socket.SHUT_RDWR)


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Wait until tasks are done, whatever became of them."""
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)


# What loses or duplicates work.


async def test_a_batch_that_the_server_makes_after_its_client_asked_is_made_once(
    store: PostgresStore, another: Open, database: str
) -> None:
    """G7: the answer "it never will" must stay true."""
    run = await started(store)
    with psycopg.connect(address(database)) as theirs, psycopg.connect(address(database), autocommit=True) as side:
        await store.enclose(theirs, StartRun(run=new_run("taken")))
        making = asyncio.create_task(store.apply([message(run.id), StartRun(run=new_run("taken"))]))
        await until_waiting(side)
        cut(store._connections.writer.connection)
        await until_waiting(side, 2)  # the old one, and the next one that it is made by
        theirs.rollback()
        await asyncio.wait_for(making, LONG)
    assert len(await unread(store, run.key)) == 1


def through(proxy: Proxy, store: PostgresStore) -> PostgresStore:
    """Give another store on the same tables, behind a proxy."""
    return PostgresStore(f"{proxy.url}{'&' if '?' in proxy.url else '?'}schema={store.schema}")


async def test_a_batch_that_was_not_made_and_asked_for_twice_is_not_taken_for_made(
    store: PostgresStore, database: str
) -> None:
    """G1, G7: what is acknowledged is there, though the answer to the question was lost as well."""
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.apply([message(run.id, "0")])

        def then_cut_the_question() -> None:
            proxy.wait_injected(1)
            proxy.cut_after_commit_sent(1, autocommit=True)

        proxy.cut_before_commit(1)
        nemesis = asyncio.create_task(asyncio.to_thread(then_cut_the_question))
        await asyncio.wait_for(far.apply([message(run.id, "7")]), LONG)
        await nemesis
        assert proxy.bites == {"cut_before_commit": 1, "cut_after_commit_sent": 1}
        proxy.heal()
        await far.close()
    assert await given(store, run) == [("message", "0"), ("message", "7")]


async def test_facts_that_arrive_late_do_not_get_into_the_next_life(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3, G5: they were made again by another way, and the run has begun anew since, at the same epoch."""
    monkeypatch.setattr("holdfast.stores.postgres.store._EXPIRES", 100_000)
    run = await started(store)
    facts = turn(run.key, entries=[entry("a1", 2)])
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.apply([turn(run.key, entries=[entry("a0", 1)])])
        proxy.black_hole()
        sending = asyncio.create_task(far.apply([facts]))
        await asyncio.to_thread(proxy.wait_injected)
        cut(far._connections.writer.connection)
        sending.cancel()
        await settled(sending)
        await store.apply([facts])
        await store.apply([turn(run.key, renewal=Renewal(input="{}", generation=1))])
        assert await store.history(run.key) == []
        proxy.heal()
        await asyncio.sleep(0.5)
        await far.close()
    assert await store.history(run.key) == []


async def test_people_can_act_while_a_backup_runs(store: PostgresStore, database: str) -> None:
    """S1-36: pg_dump holds ACCESS SHARE on every table for as long as it takes."""
    run = await started(store, owner=None)
    with psycopg.connect(address(database)) as backup:
        backup.execute(f'LOCK TABLE "{store.schema}".gate IN ACCESS SHARE MODE')
        [outcome] = await asyncio.wait_for(store.apply([Pause(target=run.id, at=NOW)]), LONG)
    assert outcome == Done(1)


async def test_a_transaction_of_somebody_keeps_no_worker_from_committing(
    store: PostgresStore, another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """S2-12: somebody encloses a start and takes his time; somebody else starts the same id."""
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


@pytest.mark.parametrize("what", ["attribute", "key", "text"])
async def test_what_cannot_be_stored_spoils_nothing_else(store: PostgresStore, what: str) -> None:
    """G5 of bad input: too long for an index, or no Unicode; the rest of the group commit is made."""
    run, long = await started(store), f'"{secrets.token_hex(4000)}"'
    operations: dict[str, Operation] = {
        "attribute": StartRun(run=new_run(options=RunOptions(attributes={"a": long}))),
        "key": extra(run.key, takes=[TakeKey(activity="a", key=long, digest=1, location="a0")]),
        "text": message(run.id, id="\ud800"),
    }
    committer = Committer(store, lambda: False)
    bad, good = await asyncio.gather(
        committer.apply(operations[what]), committer.apply(message(run.id)), return_exceptions=True
    )
    assert isinstance(bad, BadData)
    assert isinstance(good, Delivered)


@pytest.mark.parametrize("id", ["\ud800", "a\0b"], ids=["half a pair", "nul"])
async def test_ids_of_messages_can_be_stored(id: str) -> None:
    """G3 of bad input: what cannot be written is refused at the door, before it spoils the batch it is in."""
    with pytest.raises(BadInput):
        check_message_id(id)


async def test_facts_of_any_number_fit_into_one_commit(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2-30: two thousand turns of up to two megabytes each may come together; JSON ends at 256 MB."""
    use = Line.use
    monkeypatch.setattr(Line, "use", lambda line, work, answer=None: use(line, work, None))  # a busy machine takes long
    run, data = await started(store, owner=None), f'"{"x" * 2_000_000}"'
    [outcome] = await store.apply([turn(run.key, 0, entries=[entry("a0", n, data) for n in range(135)])])
    assert isinstance(outcome, Committed)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused(
    encoding: str, database: str, side: psycopg.Connection[Any]
) -> None:
    """G4 of bad input: or else one character spoils every batch it is in."""
    name = f"test_{encoding.lower()}_{os.getpid()}"
    side.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    store = PostgresStore(elsewhere(database, name))
    try:
        with pytest.raises(CannotOpen, match="UTF8"):
            await store.open()
    finally:
        await store.close()
        side.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_the_encoding_of_the_environment_does_not_matter(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4 of bad input"""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = await another()
    run = await started(store)
    assert isinstance(await one(store, message(run.id, '"€"'), Delivered), Delivered)


def elsewhere(database: str, name: str) -> str:
    """Give the address of another database on the same server."""
    before, _, after = address(database).partition("?")
    return f"{before.rpartition('/')[0]}/{name}?{after}"


async def test_a_database_or_a_user_that_does_not_exist_is_told_as_that(database: str) -> None:
    """G19: a server that answers can be reached; trying again does not help."""
    with pytest.raises(CannotOpen):
        await PostgresStore(elsewhere(database, "nowhere")).open()
    with pytest.raises(AuthFailed):
        await PostgresStore(address(database).replace("postgres@", "nobody_at_all@")).open()


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


async def test_an_enclosed_start_does_not_care_how_the_caller_likes_his_rows(
    store: PostgresStore, database: str
) -> None:
    """S2-12: row_factory is the caller's own business."""
    run = await started(store)
    async with await psycopg.AsyncConnection.connect(address(database), row_factory=dict_row) as theirs:
        assert isinstance(await store.enclose(theirs, message(run.id)), Delivered)
        assert isinstance(await store.enclose(theirs, StartRun(run=new_run("enclosed"))), Started)
        twice = await store.enclose(theirs, StartRun(run=new_run("enclosed")))
        assert not isinstance(twice, Started)
    assert await store.relay() == 1


async def test_an_enclosed_start_in_an_old_snapshot_comes_to_an_end(store: PostgresStore, database: str) -> None:
    """S2-12: in REPEATABLE READ trying again never sees the run that is in the way."""
    with psycopg.connect(address(database)) as theirs:
        theirs.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        theirs.execute("SELECT 1")
        await started(store, "taken", owner=None)
        with pytest.raises((psycopg.Error, StoreError)):
            await asyncio.wait_for(store.enclose(theirs, StartRun(run=new_run("taken"))), LONG)


async def test_a_full_inbox_keeps_no_message_to_others_in_the_outbox(store: PostgresStore, database: str) -> None:
    """G7: five hundred that cannot be delivered at present stand before one that can."""
    full, free = await started(store), await started(store)
    await one(store, message(full.id), Delivered)
    with psycopg.connect(address(database)) as theirs:
        for _ in range(500):
            await store.enclose(theirs, message(full.id, max_pending=1))
        await store.enclose(theirs, message(free.id, "7"))
    for _ in range(3):
        await store.relay()
    assert await given(store, free) == [("message", "7")]


async def test_an_enclosed_message_to_a_run_that_was_purged_is_a_dead_letter(
    store: PostgresStore, database: str
) -> None:
    """G7, G12: it was accepted, so it is not dropped silently."""
    run = await started(store)
    with psycopg.connect(address(database)) as theirs:
        assert isinstance(await store.enclose(theirs, message(run.id, "7")), Delivered)
        await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done)
        assert await one(store, Purge(what="failed", before=NOW + 1, at=NOW), Done) == Done(1, (run.id,))
    assert await store.relay() == 1
    assert [letter.payload for letter in await store.letters(LetterFilter())] == ["7"]


async def test_who_hangs_is_not_taken_for_dead_because_of_a_time_zone(another: Open) -> None:
    """G4: a worker that hung beyond its lease never convicts a step; begun is compared as text."""
    here = await another("&options=-c%20TimeZone%3DAsia/Tokyo")
    there = await another("&options=-c%20TimeZone%3DAmerica/Lima")
    await here.join("w", timedelta(milliseconds=50))
    run = new_run(owner="w")
    await one(here, StartRun(run=run), Started)
    await asyncio.sleep(0.1)
    assert await there.take_over(NOW) == 1
    await there.join("v", LEASE)
    [claimed] = await there.claim("v", NOW, 1, ["order"], "")
    assert claimed.lost == "lapse"


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


# Steps in transactions.


def _oversleep(connection: object) -> str:
    time.sleep(0.2)
    return ""


async def test_a_body_that_came_too_late_costs_the_next_one_nothing(store: PostgresStore) -> None:
    """S2-12: its connection is being taken away, so nobody else may be given it."""
    run = await started(store)
    connections = store._connections
    with connections._renewing:  # a renewal is under way, so that it takes a moment
        with pytest.raises(StepTimeout):
            await transacted(store, attempt_of(run, limit=timedelta(milliseconds=50)), _oversleep)

        def slow(connection: psycopg.Connection[Any]) -> str:
            entered.set()
            leave.wait(LONG)
            connection.execute("SELECT 1")
            return "{}"

        entered, leave = threading.Event(), threading.Event()
        second = asyncio.create_task(transacted(store, attempt_of(run), slow))
        await asyncio.to_thread(entered.wait, LONG)
    await asyncio.sleep(0.3)
    leave.set()
    assert isinstance(await second, Delivered)


async def test_what_a_body_does_to_its_connection_stays_with_it(store: PostgresStore) -> None:
    """S2-12: rows as dictionaries, and settings of the session."""
    run = await started(store)

    def meddling(connection: psycopg.Connection[Any]) -> str:
        connection.row_factory = dict_row
        connection.execute("SET statement_timeout = 12345")
        return "{}"

    def plain(connection: psycopg.Connection[Any]) -> str:
        found.extend(connection.execute("SHOW statement_timeout").fetchall())
        return "{}"

    found: list[Any] = []
    assert isinstance(await transacted(store, attempt_of(run), meddling), Delivered)
    assert isinstance(await transacted(store, attempt_of(run), plain), Delivered)
    assert found == [("0",)]


async def test_a_server_that_restarted_costs_steps_no_attempt(
    store: PostgresStore, side: psycopg.Connection[Any]
) -> None:
    """G4: a kept connection that is dead is found out before the body is called."""
    run = await started(store)
    assert isinstance(await transacted(store, attempt_of(run), lambda _: "{}"), Delivered)
    [kept] = store._transactions._kept
    side.execute("SELECT pg_terminate_backend(%s)", (kept.info.backend_pid,))
    assert isinstance(await transacted(store, attempt_of(run), lambda _: "{}"), Delivered)


# What hangs or gives a bad error.


async def test_closing_ends_what_is_under_way(database: str, store: PostgresStore) -> None:
    """S0: neither the closing nor what waits for the database hangs."""
    other = PostgresStore(database)
    await other.open()
    run = await started(store)
    with psycopg.connect(address(database)) as holder:
        holder.execute(f'SELECT 1 FROM "{store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        waiting_ones = [asyncio.create_task(other.apply([message(run.id)])) for _ in range(3)]
        await asyncio.sleep(0.3)
        await asyncio.wait_for(other.close(), LONG)
        done, hung = await asyncio.wait(waiting_ones, timeout=LONG)
        for task in hung:
            task.cancel()
        await settled(*hung)
    assert not hung
    assert all(isinstance(task.exception(), StoreError) for task in done)


async def test_opening_twice_at_once_opens_once(database: str, side: psycopg.Connection[Any]) -> None:
    """S0: no listener is left behind."""
    store = PostgresStore(database)
    await asyncio.gather(store.open(), store.open())
    await store.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "holdfast listener"]


async def test_a_password_that_cannot_be_read_is_not_shown() -> None:
    """G19: the DSN password never shown."""
    with pytest.raises(BadInput) as caught:
        PostgresStore("postgresql://user:100%secret@localhost/db")
    assert "secret" not in str(caught.value)


async def test_commits_leave_no_rows_behind(store: PostgresStore, side: psycopg.Connection[Any]) -> None:
    """S2-30: a row per commit that others overtook would be there for ever."""
    run = await started(store)
    for _ in range(10):
        await asyncio.gather(*(store.apply([message(run.id)]) for _ in range(5)))
    await store.apply([message(run.id)])
    [(count,)] = side.execute(f'SELECT count(*) FROM "{store.schema}".commits').fetchall()
    assert count == 1


async def test_who_cancels_leaves_the_connection_in_order(store: PostgresStore) -> None:
    """S0: cancelled anywhere between BEGIN and COMMIT, or while reading; the next one finds its own answers."""
    dice, runs = random.Random(5), [await started(store) for _ in range(4)]
    for number in range(60):
        run = dice.choice(runs)
        work: Any = dice.choice(
            [
                lambda: store.apply([message(run.id)]),  # noqa: B023
                lambda: store.apply([turn(run.key, entries=[])]),  # noqa: B023
                lambda: store.load([run.key]),  # noqa: B023
                lambda: store.get(run.id),  # noqa: B023
                lambda: store.apply([Pause(target="nobody", at=NOW)]),
                lambda: store.claim("w", NOW, 5, ["order"], ""),
            ]
        )
        task = asyncio.create_task(work())
        await asyncio.sleep(dice.choice([0, 0, dice.uniform(0, 0.004)]))
        task.cancel()
        await settled(task)
        other = dice.choice(runs)
        assert (await row(store, other.id)).key == other.key, number
        [outcome] = await store.apply([message(other.id)])
        assert isinstance(outcome, Delivered), number
        assert outcome.key == other.key
    for run in runs:
        assert [each.n for each in await unread(store, run.key)] == list(range(1, (await row(store, run.id)).inbox + 1))


async def test_the_clock_follows_the_server_without_a_worker(store: PostgresStore) -> None:
    """G9: a client whose clock went wrong, and that renews no lease, is told the time all the same."""
    hour = 3600 * 10**6
    store._clock._offset -= hour
    store._clock._told -= hour
    assert store._clock.stale
    for _ in range(100):
        store.changed()
        await asyncio.sleep(0.02)
        if not store._clock.stale:
            break
    assert abs(store.clock.now() - time.time_ns() // 1000) < 10**6


async def test_who_is_cancelled_while_the_connection_breaks_does_not_go_on(
    store: PostgresStore, another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """S0: psycopg then raises its own error in place of the cancellation, and that must not be tried again."""
    run, other = await started(store), await another()
    with psycopg.connect(address(database)) as holder:
        holder.execute(f'SELECT 1 FROM "{store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        sending = asyncio.create_task(other.apply([message(run.id)]))
        await until_waiting(side)
        sending.cancel()
        cut(other._connections.writer.connection)
        done, _ = await asyncio.wait([sending], timeout=LONG)
        holder.rollback()
        await settled(sending)
    assert done
    assert sending.cancelled()


async def test_a_connection_that_breaks_in_a_body_is_no_failure_of_the_body(
    store: PostgresStore, side: psycopg.Connection[Any]
) -> None:
    """G4: a storage fault hands the attempt back; nothing was written."""

    def body(connection: psycopg.Connection[Any]) -> str:
        side.execute("SELECT pg_terminate_backend(%s, 1000)", (connection.info.backend_pid,))
        connection.execute("SELECT 1")
        return "{}"

    with pytest.raises(StoreError):
        await transacted(store, attempt_of(await started(store)), body)


async def test_a_clock_that_was_put_back_keeps_nobody_from_starting_runs(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9: keys of runs are made of the time; those of a large batch are taken."""
    await store.apply([StartRun(run=new_run()) for _ in range(500)])
    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() - 3600 * 10**9)
    for _ in range(3):
        assert isinstance(await one(store, StartRun(run=new_run()), Started), Started)


async def test_durability_is_what_the_store_says_it_is(
    another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """G16: behind a pooler no options pass, and the role's own settings are what counts."""
    role = f"careless_{os.getpid()}"
    side.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    side.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    store = PostgresStore(database.replace("postgres@", f"{role}@"), dialect="pooler")
    try:
        await store.open()
        [(level,)] = await store._connections.reader.use(_level)
        assert (store.durability, level) in (("power", "on"), ("process", "off"))
    finally:
        await store.close()
        side.execute(f"DROP OWNED BY {role} CASCADE")
        side.execute(f"DROP ROLE {role}")


async def _level(connection: Any) -> list[Any]:
    return list(await (await connection.execute("SHOW synchronous_commit")).fetchall())


# What the repairs of the above brought with them.


async def test_a_commit_that_is_answered_too_late_is_made_once(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: the server has made it when the client gives up waiting."""
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.apply([message(run.id, "0")])
        defaults: Any = PostgresStore._insisting.__kwdefaults__
        monkeypatch.setitem(defaults, "answer", 1.6)
        proxy.delay(0.5)  # it is locked after one second, committed after one and a half, answered after two
        sending = asyncio.create_task(far.apply([message(run.id, "7")]))
        await asyncio.sleep(1.7)
        proxy.heal()
        await settled(sending)
        await far.close()
    assert await given(store, run) == [("message", "0"), ("message", "7")]


async def test_what_comes_after_a_turn_that_failed_is_not_written(store: PostgresStore) -> None:
    """G3: a history without a hole, though the two were in one batch with something that could be written."""
    run, other = await started(store), await started(store)
    committer, outcomes = Committer(store, lambda: False), dict[str, Any]()

    class Resident:
        lost = False

        def lose(self) -> None:
            self.lost = True

    holder, long = Resident(), secrets.token_hex(4000)
    take = TakeKey(activity="a", key=long, digest=1, location="a0")
    committer.submit(extra(run.key, takes=[take]), lambda outcome: outcomes.update(first=outcome), holder)
    committer.submit(turn(run.key, entries=[entry("a1", 2)]), lambda outcome: outcomes.update(second=outcome), holder)
    committer.submit(message(other.id), lambda outcome: outcomes.update(third=outcome))
    await committer.stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert isinstance(outcomes["first"], StoreError)
    assert isinstance(outcomes["second"], StoreError)
    assert isinstance(outcomes["third"], Delivered)
    assert await store.history(run.key) == []


async def test_two_messages_of_one_id_to_runs_that_were_purged_are_two_letters(
    store: PostgresStore, database: str
) -> None:
    """G12"""
    runs = [await started(store), await started(store)]
    with psycopg.connect(address(database)) as theirs:
        for run in runs:
            await store.enclose(theirs, message(run.id, id="same"))
            await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done)
        await one(store, Purge(what="failed", before=NOW + 1, at=NOW), Done)
    await store.relay()
    assert len(await store.letters(LetterFilter())) == 2


async def test_closing_does_not_wait_for_a_hint(store: PostgresStore, database: str) -> None:
    """G14: with a server that fell silent."""
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.get(run.id)
        await far.apply([message(run.id)])
        proxy.black_hole()
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(far.close())
        done, _ = await asyncio.wait([closing], timeout=ANSWER / 2)
        proxy.heal()
        await settled(closing)
    assert done


async def test_loading_a_run_comes_to_an_end(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: with a server that fell silent."""
    monkeypatch.setattr("holdfast.stores.postgres.store.ANSWER", 1.0)
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.load([run.key])
        proxy.black_hole()
        loading = asyncio.create_task(far.load([run.key]))
        done, _ = await asyncio.wait([loading], timeout=LONG)
        loading.cancel()
        proxy.heal()
        await settled(loading)
        await far.close()
    assert done


WRITERS: dict[str, Callable[[PostgresStore, RunRow], Awaitable[Any]]] = {
    "facts": lambda store, run: store.apply([turn(run.key, entries=[entry("a0", 1)])]),
    "a message": lambda store, run: store.apply([message(run.id)]),
    "an event": lambda store, run: store.apply([event()]),
    "a claim": lambda store, run: store.claim("w", NOW, 5, ["order"], "", suspects=False),
    "a claim of a suspect": lambda store, run: store.claim("w", NOW, 5, ["order"], ""),
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
        alone.execute(f'LOCK TABLE "{store.schema}".gate IN EXCLUSIVE MODE')
        writing = asyncio.ensure_future(writer(store, run))
        done, _ = await asyncio.wait([writing], timeout=0.5)
        alone.rollback()
        await asyncio.wait_for(writing, LONG)
    assert not done


async def test_a_client_that_hangs_with_a_run_locked_is_ended(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: nobody wants to be alone, and everybody who has something for that run waits."""
    monkeypatch.setattr("holdfast.stores.postgres.store.SILENCE", timedelta(seconds=1))
    run = await started(store)
    with contextlib.suppress(psycopg.errors.AdminShutdown), psycopg.connect(address(database)) as hanging:
        hanging.execute(f'SELECT 1 FROM "{store.schema}".gate WHERE id < 0 FOR KEY SHARE')
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
