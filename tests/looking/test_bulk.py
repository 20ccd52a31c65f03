"""Acting on many runs: what is done is what was counted, page by page, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from holdfast import Context, workflow
from holdfast.errors import BadInput, NoSuchRun
from holdfast.looking import LocalDesk, bulk
from holdfast.looking.acts import Options
from holdfast.looking.bulk import UnusableSelection
from holdfast.looking.views import BulkProgress
from holdfast.testing import JumpingClock, TestEngine

KIM = Options(by="kim", reason="INC-7")


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 10)


@pytest.fixture
async def engine() -> AsyncIterator[TestEngine]:
    clock = JumpingClock()
    async with TestEngine(workflows=[approval], clock=clock) as engine:
        engine.store.clock = clock
        yield engine


async def waiting(engine: TestEngine, n: int) -> None:
    for number in range(n):
        await engine.start(approval, id=f"order-{number}", attributes={"batch": number % 2})
    await engine.settle()


async def last(progress: AsyncIterator[BulkProgress]) -> BulkProgress:
    return [each async for each in progress][-1]


async def test_a_dry_run_says_what_the_act_then_does(engine):
    await waiting(engine, 35)
    desk = LocalDesk(engine.store, engine=engine)
    await engine.get("order-3").pause()
    await engine.get("order-4").terminate()
    await engine.settle()
    plan = await desk.select("pause", "workflow:approval")
    assert (plan.matched, plan.exact, plan.can, plan.cannot) == (35, True, 33, {"paused": 1, "cancelled": 1})
    assert plan.sample[0] == "order-34"
    assert (await desk.count("status:paused")).n == 1
    steps = [each async for each in desk.bulk(plan.selection, KIM)]
    assert [each.changed for each in steps] == [10, 20, 30, 33]
    assert [each.finished for each in steps] == [False, False, False, True]
    assert steps[-1].cannot == plan.cannot
    await engine.settle()
    assert (await desk.count("status:paused")).n == 34
    acts = (await desk.audit(actor="kim", limit=100)).items
    assert (len(acts), {act.detail["reason"] for act in acts}) == (33, {"INC-7"})


async def test_what_is_started_after_the_dry_run_is_not_touched(engine):
    await waiting(engine, 5)
    desk = LocalDesk(engine.store, engine=engine)
    plan = await desk.select("cancel", "workflow:approval")
    late = await engine.start(approval, id="late")
    await engine.settle()
    done = await last(desk.bulk(plan.selection, KIM))
    await engine.settle()
    assert (done.changed, await late.status()) == (5, "suspended")


async def test_an_act_that_was_stopped_after_a_page_is_finished_by_the_same_again(engine):
    await waiting(engine, 25)
    desk = LocalDesk(engine.store, engine=engine)
    plan = await desk.select("pause", "workflow:approval")
    progress = desk.bulk(plan.selection, KIM)
    first = await anext(progress)
    await progress.aclose()
    await engine.settle()
    assert (first.changed, first.finished, (await desk.count("status:paused")).n) == (10, False, 10)
    rest = await last(desk.bulk(plan.selection, KIM, before=first.next))
    assert rest.changed == 15
    again = await last(desk.bulk(plan.selection, KIM))
    assert (again.changed, again.cannot) == (0, {"paused": 25})


async def test_the_numbers_hold_while_others_act_too(engine):
    """Only what cannot be done any more may grow, and says so."""
    await waiting(engine, 60)
    desk = LocalDesk(engine.store, engine=engine)
    plan = await desk.select("pause", "workflow:approval")
    progress = desk.bulk(plan.selection, KIM)
    await anext(progress)

    async def race(writer: int) -> None:
        for number in range(writer, 60, 8):
            await engine.get(f"order-{number}").terminate()
            await engine.start(approval, id=f"late-{writer}-{number}")

    racing = [asyncio.create_task(race(writer)) for writer in range(4)]
    done = await last(progress)
    await asyncio.gather(*racing)
    await engine.settle()
    assert done.changed + sum(done.cannot.values()) == plan.matched == 60
    assert done.changed <= plan.can
    assert done.failed == {}
    assert not [head for head in (await desk.heads("status:paused", limit=200)).items if head.id.startswith("late")]


async def test_attributes_are_set_on_many_and_terminating_needs_a_reason(engine):
    await waiting(engine, 4)
    desk = LocalDesk(engine.store, engine=engine)
    plan = await desk.select("attributes", "batch=1")
    options = Options(by="kim", attributes={"seen": True, "batch": None})
    assert (await last(desk.bulk(plan.selection, options))).changed == 2
    assert [head.id for head in (await desk.heads("seen=true")).items] == ["order-3", "order-1"]
    ending = await desk.select("terminate", "workflow:approval")
    with pytest.raises(BadInput, match="needs a reason"):
        await last(desk.bulk(ending.selection, Options(by="kim")))
    assert (await last(desk.bulk(ending.selection, KIM))).changed == 4


async def test_runs_are_chosen_by_their_ids_too(engine):
    await waiting(engine, 25)
    desk = LocalDesk(engine.store, engine=engine)
    await engine.get("order-3").pause()
    await engine.settle()
    ids = [f"order-{number}" for number in range(12)]
    plan = await desk.select("pause", ids=[*ids, "order-0"])
    assert (plan.matched, plan.can, plan.cannot) == (12, 11, {"paused": 1})
    steps = [each async for each in desk.bulk(plan.selection, KIM)]
    assert [(each.changed, each.next, each.finished) for each in steps] == [(9, 10, False), (11, None, True)]
    assert (await last(desk.bulk(plan.selection, KIM, before=10))).cannot == {"paused": 2}
    assert (await desk.select("pause", "order-20")).sample == ["order-20"]  # a word alone is the id of a run
    with pytest.raises(NoSuchRun, match="nothing was changed"):
        await desk.select("pause", ids=["order-1", "nobody"])
    for wrong in (
        {"ids": ["order-1"], "which": "is:open"},
        {"ids": ["a b"]},
        {"ids": [f"o{n}" for n in range(10_001)]},
    ):
        with pytest.raises(BadInput):
            await desk.select("pause", **wrong)


async def test_no_caller_can_make_up_a_selection_or_change_one(engine):
    await waiting(engine, 3)
    desk = LocalDesk(engine.store, engine=engine)
    made = (await desk.select("pause", "batch=1")).selection
    signed = base64.urlsafe_b64decode(made + "=" * (-len(made) % 4))
    body = signed[32:]
    assert b'"action":"pause"' in body
    forged = [
        body,
        bytes(32) + body,
        signed[:32] + body.replace(b"pause", b"cancel"),
        signed[:32] + body.replace(b'{"batch":"1"}', b"{}").replace(b'"batch":"1"', b""),
        hmac.digest(b"guessed", body, "sha256") + body,
        signed[:31],
    ]
    for each in forged:
        with pytest.raises(BadInput, match="no selection that a dry run made here"):
            await last(desk.bulk(base64.urlsafe_b64encode(each).decode(), KIM))
    other = LocalDesk(engine.store, engine=engine)  # all desks on a database sign with the same secret
    assert (await last(other.bulk(made, KIM))).changed == 1


async def test_what_cannot_be_chosen_or_used_is_refused(engine):
    await waiting(engine, 2)
    desk = LocalDesk(engine.store, engine=engine)
    with pytest.raises(BadInput, match="does not act on everything"):
        await desk.select("pause", "")
    with pytest.raises(BadInput, match="there is no act 'delete'"):
        await desk.select("delete", "workflow:approval")
    with pytest.raises(BadInput, match="no selection"):
        await last(desk.bulk("nonsense", KIM))
    plan = await desk.select("pause", "workflow:approval")
    engine.jumping.advance(timedelta(minutes=11))
    with pytest.raises(BadInput, match="older than ten minutes"):
        await last(desk.bulk(plan.selection, KIM))
    ahead = await desk.select("pause", "workflow:approval")
    engine.jumping._now -= 10 * 60 * 1_000_000  # another machine's clock
    with pytest.raises(UnusableSelection, match="made 10 minutes from now: the clocks of two machines differ"):
        await desk.chosen(ahead.selection)
    engine.jumping.advance(timedelta(minutes=9, seconds=30))
    assert (await desk.chosen(ahead.selection)).matched == 2  # clocks may differ by a little
    looking = LocalDesk(engine.store)
    assert (await looking.select("pause", "workflow:approval")).can == 2
    with pytest.raises(BadInput, match="only looks"):
        await last(looking.bulk(plan.selection, KIM))
    with pytest.raises(BadInput, match="only looks"):
        await looking.act("pause", "order-1", KIM)
    assert (await desk.act("pause", "order-1", KIM)).changed
