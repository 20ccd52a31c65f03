"""Commits whose answer was lost, or came too late: made once, or not at all."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.support.postgres_cases import Open, address, cut, settled, through, until_waiting
from tests.support.waiting import LONG

from holdfast.contract.operations import (
    Delivered,
)
from holdfast.contract.turns import Renewal, StartRun, TakeKey
from holdfast.engine.worker.committer import Committer
from holdfast.errors import StoreError
from holdfast.stores.postgres.database import Database
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    entry,
    extra,
    given,
    message,
    new_run,
    started,
    turn,
    unread,
)


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
    """G3, G5: they were made again by another way, and the run has begun again since, at the same epoch."""
    monkeypatch.setattr("holdfast.stores.postgres.commits.EXPIRES", 100_000)
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
        await asyncio.sleep(0.2)  # nothing is made again by another way before it has expired
        await store.apply([facts])
        await store.apply([turn(run.key, renewal=Renewal(input="{}", generation=1))])
        assert await store.history(run.key) == []
        proxy.heal()
        await asyncio.sleep(0.5)
        await far.close()
    assert await store.history(run.key) == []


async def test_a_commit_that_is_answered_too_late_is_made_once(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: the server has made it when the client gives up waiting."""
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.apply([message(run.id, "0")])
        defaults: Any = Database.insist.__kwdefaults__
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
        id = "run"
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
