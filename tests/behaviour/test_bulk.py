"""Acting on many runs: a filter chooses them, each is done by itself, and a report says what came of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.acts_cases import Flaky

from holdfast import Context, NonRetryable, Retry, RunCancelled, Status, activity, workflow
from holdfast.errors import BadInput

HOUR = timedelta(hours=1)
TIMEOUT = timedelta(seconds=1)
"""Real time: long enough for a body that answers at once on a machine that is busy."""
body = Flaky()


@workflow
async def waits(ctx: Context, name: str) -> str:
    return await ctx.receive("word", str)


@workflow
async def pays(ctx: Context, name: str) -> str:
    return await ctx.step("pay", body.step, name)


async def test_a_filter_is_tried_first_and_then_acted_on(make_engine):
    """S2-39 S3-14 B7 B38 dry_run only lists; with the number of that the same call acts on those runs, each audited."""
    engine = await make_engine(waits)
    for name in ("a", "b", "c"):
        await engine.start(waits, name, id=name, tenant="acme" if name != "c" else "other")
    await engine.settle()
    tried = await engine.bulk("cancel", tenant="acme", dry_run=True)
    assert (sorted(tried.matched), tried.changed, tried.unchanged, tried.failed) == (["a", "b"], [], [], {})
    assert await engine.audit.records() == []
    assert [await engine.get(name).status() for name in "abc"] == [Status.SUSPENDED] * 3
    with pytest.raises(BadInput, match=r"act on 2 runs: .*expect=2"):
        await engine.bulk("cancel", tenant="acme")
    with pytest.raises(BadInput, match="act on 2 runs, not on 3"):
        await engine.bulk("cancel", tenant="acme", expect=3)
    report = await engine.bulk("cancel", tenant="acme", expect=2, by="kim", reason="they left")
    assert sorted(report.changed) == ["a", "b"]
    await engine.settle()
    assert [await engine.get(name).status() for name in "abc"] == [Status.CANCELLED] * 2 + [Status.SUSPENDED]
    records = await engine.audit.records()
    assert sorted(record.target for record in records) == ["a", "b"]
    assert {(record.actor, record.action, record.detail["reason"]) for record in records} == {
        ("kim", "cancel", "they left")
    }


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("pause", Status.SUSPENDED, Status.PAUSED),
        ("resume", Status.PAUSED, Status.SUSPENDED),
        ("terminate", Status.SUSPENDED, Status.CANCELLED),
        ("resume", Status.CANCELLED, Status.SUSPENDED),
    ],
)
async def test_every_action_can_be_done_to_many(make_engine, action, before, after):
    """S4-25 B7 By status: every run that has it, and a run that has it no longer is reported unchanged."""
    engine = await make_engine(waits)
    runs = [await engine.start(waits, name) for name in ("a", "b", "c")]
    await engine.settle()
    if before is not Status.SUSPENDED:
        await engine.bulk("pause" if before is Status.PAUSED else "terminate", workflow="waits", expect=3)
        await engine.settle()
    assert [await run.status() for run in runs] == [before] * 3
    report = await engine.bulk(action, status=before, expect=3)
    assert len(report.changed) == 3
    await engine.settle()
    assert [await run.status() for run in runs] == [after] * 3
    again = await engine.bulk(action, workflow="waits", expect=3)
    if action == "pause":
        assert len(again.changed) == 3  # a pause may be repeated, to give it another end
    else:
        assert len(again.unchanged) == 3


async def test_failed_runs_are_retried_together_after_the_cause_was_put_right(make_engine):
    """S0-20 S4-24 What cannot be retried is reported by its error and stops no other."""
    engine = await make_engine(pays)
    body.failing, body.ran = {"a", "b", "c"}, []
    for name in ("a", "b", "c", "fine"):
        await engine.start(pays, name, id=name, unique_key=name)
    await engine.settle()
    body.failing = {"c"}
    holder = await engine.start(pays, "b", id="b2", unique_key="b", delay=HOUR)
    report = await engine.bulk("retry", status="failed", expect=3, by="kim")
    assert sorted(report.matched) == ["a", "b", "c"]
    assert sorted(report.changed) == ["a", "c"]
    assert list(report.failed) == ["b"]
    assert report.failed["b"].startswith("UniqueConflict: ")
    assert holder.id in report.failed["b"]
    await engine.settle()
    found = {run.id: run.status for run in await engine.runs()}
    assert found == {"a": "completed", "b": "failed", "c": "failed", "fine": "completed", "b2": "pending"}
    everything = await engine.bulk("retry", workflow="pays", limit=10, expect=5)
    assert sorted(everything.failed) == ["a", "b", "b2", "fine"]  # not failed, or not able
    assert everything.changed == ["c"]


class Provider:
    """A service of which an attempt may be lost: it answers, raises, or never comes back."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = False
        provider = self

        async def ask(name: str) -> str:
            provider.asked.append(name)
            if provider.answers:
                return name
            if name == "raises":
                raise ConnectionError("no")
            if name == "hopeless":
                raise NonRetryable("no such account")
            await asyncio.Event().wait()
            return name

        plain = activity(name="ask", retry=Retry.never, timeout=TIMEOUT)(ask)
        safe = activity(name="look", retry=Retry.never, timeout=TIMEOUT, idempotent=True)(ask)

        @workflow
        async def asks(ctx: Context, name: str) -> str:
            return await ctx.step(safe if name == "idempotent" else plain, name)

        self.asks = asks


async def test_many_are_retried_only_where_that_is_safe(make_engine):
    """S4-24 B38 A failure that the body raised, or an idempotent step; what timed out only by its name."""
    provider = Provider()
    engine = await make_engine(provider.asks)
    for name in ("raises", "hopeless", "times-out", "idempotent"):
        await engine.start(provider.asks, name, id=name)
    await engine.settle()
    assert [run.status for run in await engine.runs()] == [Status.FAILED] * 4
    provider.answers = True
    provider.asked.clear()
    report = await engine.bulk("retry", status="failed", expect=4)
    assert sorted(report.changed) == ["idempotent", "raises"]
    assert report.skipped == {
        "hopeless": "its failure says that trying again is pointless",
        "times-out": "step 'ask' of run 'times-out': its last attempt timed out",
    }
    await engine.settle()
    assert sorted(provider.asked) == ["idempotent", "raises"]
    report = await engine.bulk("retry", status="failed", expect=2, steps=["ask"])
    assert (report.changed, list(report.skipped)) == (["times-out"], ["hopeless"])
    assert await engine.get("times-out").result() == "times-out"


async def test_many_letters_are_replayed_only_where_that_is_safe(make_engine):
    """S4-24 S4-32 B38 As with runs; one by one, by its letter, everything can be."""
    provider = Provider()
    engine = await make_engine(provider.asks)
    for name in ("raises", "hopeless", "times-out", "idempotent"):
        await engine.start(provider.asks, name, id=name)
    await engine.settle()
    letters = {letter.run_id: letter.id for letter in await engine.dead_letters.list()}
    provider.answers = True
    report = await engine.dead_letters.replay_all(expect=4)
    assert sorted(report.replayed) == sorted([letters["raises"], letters["idempotent"]])
    assert sorted(report.skipped) == sorted([letters["hopeless"], letters["times-out"]])
    assert "timed out" in report.skipped[letters["times-out"]]
    assert await engine.dead_letters.replay(letters["times-out"]) is True
    assert await engine.get("times-out").result() == "times-out"


async def test_at_most_the_limit_is_touched_newest_first(make_engine):
    """S2-39 A page at a time, so that nothing large happens by mistake."""
    engine = await make_engine(waits)
    for number in range(5):
        await engine.start(waits, "x", id=f"r{number}")
    await engine.settle()
    report = await engine.bulk("terminate", workflow="waits", limit=2, expect=2)
    assert report.changed == ["r4", "r3"]
    assert len(await engine.runs(status="suspended")) == 3


async def test_what_bulk_cannot_do_is_refused(make_engine):
    """B7 An action it does not know, no filter at all, a filter or a limit that means nothing."""
    engine = await make_engine(waits)
    run = await engine.start(waits, "a")
    await engine.settle()
    with pytest.raises(BadInput, match="cancel, terminate, pause, resume or retry, not 'rerun'"):
        await engine.bulk("rerun", workflow="waits")
    with pytest.raises(BadInput, match="needs a filter"):
        await engine.bulk("cancel")
    with pytest.raises(BadInput, match="cannot be chosen by workfow"):
        await engine.bulk("cancel", workfow="waits")
    with pytest.raises(BadInput, match="is none of"):
        await engine.bulk("cancel", status="sleeping")
    with pytest.raises(BadInput, match="limit"):
        await engine.bulk("cancel", workflow="waits", limit=0)
    assert await run.status() is Status.SUSPENDED
    assert (await engine.bulk("cancel", workflow="nobody")).matched == []


async def test_bulk_refuses_a_filter_that_filters_nothing(make_engine):
    """B7 `workflow=None`, from a variable that was never set, would mean every run there is."""
    engine = await make_engine(waits)
    run = await engine.start(waits, "a")
    await engine.settle()
    for nothing in ({"workflow": None}, {"status": None, "tenant": None}, {"attributes": {}}):
        with pytest.raises(BadInput, match="needs a filter"):
            await engine.bulk("terminate", **nothing)
    assert await run.status() is Status.SUSPENDED


async def test_runs_are_chosen_by_attributes_too(make_engine):
    """S3-14 S0-53 Those the caller set and those the run set itself."""

    @workflow
    async def sets(ctx: Context, region: str) -> None:
        ctx.set_attributes(region=region)
        await ctx.receive("word")

    engine = await make_engine(sets)
    north, south = await engine.start(sets, "north"), await engine.start(sets, "south")
    await engine.settle()
    await south.set_attributes({"urgent": True}, by="kim")
    assert (await engine.bulk("cancel", attributes={"region": "south", "urgent": True})).changed == [south.id]
    with pytest.raises(RunCancelled):
        await south.result()
    assert await north.status() is Status.SUSPENDED
