"""The compliance workflow: every path, the signature that comes late or never, crashes, evidence, and no other edge."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from examples import fair_chance_housing as housing
from examples.fair_chance_housing import EDGES, SIGNED, Application, Authorization, Case, Decision, State, fair_chance
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import ROOT

from holdfast import Context, RunFailed, RunHandle, RunTerminal, Status, workflow
from holdfast.testing import TestEngine, record, replay
from holdfast.testing.invariants import violations

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)

FOUR = [*State][:4]
QUALIFIED = ["init", "prequalification", "offer"]
PATHS = {  # what the applicant's id means to the stubs: the way of the application, its evidence, its steps
    "low-income": (
        [State.PREQUALIFICATION, State.DENIED],
        ["init", "prequalification", "decision"],
        ["prequalify"],
    ),
    "clean": (
        [State.PREQUALIFICATION, State.CONDITIONAL_OFFER, State.BACKGROUND_CHECK_ALLOWED, State.APPROVED],
        [*QUALIFIED, "authorization", "check", "decision"],
        ["prequalify", "deliver_offer", "check_background"],
    ),
    "record-old": (
        [*FOUR, State.APPROVED],
        [*QUALIFIED, "authorization", "check", "assessment", "decision"],
        ["prequalify", "deliver_offer", "check_background", "assess"],
    ),
    "record-recent": (
        [*FOUR, State.DENIED],
        [*QUALIFIED, "authorization", "check", "assessment", "decision"],
        ["prequalify", "deliver_offer", "check_background", "assess"],
    ),
}
UNSIGNED = (
    [State.PREQUALIFICATION, State.CONDITIONAL_OFFER, State.DENIED],
    [*QUALIFIED, "authorization", "decision"],
    ["prequalify", "deliver_offer"],
)


@pytest.fixture(params=["memory", "file", "evict"])
async def engine(request, tmp_path):
    database = ":memory:" if request.param == "memory" else str(tmp_path / "housing.db")
    options = {"max_resident": 0} if request.param == "evict" else {}
    async with TestEngine(database, workflows=[fair_chance], start=BEGIN, **options) as engine:
        yield engine
        assert await violations(engine.store) == []


def application(applicant: str, number: int = 1) -> Application:
    return Application(f"app_{number}", applicant, "prop_789", "unit_101", "org_111")


def signature(applicant: str) -> Authorization:
    return Authorization(BEGIN, applicant)


async def check(engine: TestEngine, run: RunHandle[Decision], expected: tuple[list, list, list]) -> Decision:
    """Compare the result, the evidence and the steps of a decided application with what they should be."""
    way, kinds, steps = expected
    decision = await run.result()
    assert decision.state is way[-1]
    assert decision.approved is (way[-1] is State.APPROVED)
    items = await engine.audit.evidence(run.id)
    assert [item.kind for item in items] == kinds
    assert decision.evidence_ids == [item.id for item in items]
    assert len(set(decision.evidence_ids)) == len(kinds) > 0
    assert (await engine.audit.verify_evidence(run.id)).ok
    assert way_of(items) == way
    assert [step.name for step in await run.steps()] == steps
    assert (await run.describe()).attributes == {"organization": "org_111", "state": way[-1]}
    return decision


def way_of(items: list[Any]) -> list[str]:
    """Return the states that the evidence shows, having checked that each item begins where the one before it ended."""
    assert all(item.data["to"] == following.data["from"] for item, following in pairwise(items))
    moves = [item.data for item in items if item.data["from"] != item.data["to"]]
    return [items[0].data["from"], *(move["to"] for move in moves)]


@pytest.mark.parametrize("applicant", PATHS)
async def test_an_application_takes_the_way_that_the_law_prescribes(engine, applicant):
    """S3-20 S3-21 S3-19 Each path: its states, its evidence in order, its result, and nothing done that it forbids."""
    run = await engine.start(fair_chance, application(applicant), id="app_1")
    await engine.settle()
    if applicant != "low-income":
        assert await run.query("state") == State.CONDITIONAL_OFFER
        assert [found.id for found in await engine.runs(attributes={"state": State.CONDITIONAL_OFFER})] == ["app_1"]
        await run.send(SIGNED, signature(applicant))
    decision = await check(engine, run, PATHS[applicant])
    assert decision.rationale


async def test_the_evidence_says_what_each_transition_rests_on(engine):
    """S3-19 Input, prequalification, offer, signature, findings, factors and rationale can be read from it later."""
    applied = application("record-old")
    run = await engine.start(fair_chance, applied, id="app_1")
    await run.send(SIGNED, signature("record-old"))
    decision = await run.result()
    items = {item.kind: item.data for item in await engine.audit.evidence("app_1")}
    assert items["init"]["application"] == asdict(applied)
    assert items["prequalification"]["qualified"] is True
    assert items["offer"]["offer"] == "offer of unit_101"
    assert items["authorization"]["signed"] is True
    assert items["authorization"]["by"] == "record-old"
    assert datetime.fromisoformat(items["authorization"]["at"]) == BEGIN
    assert items["check"]["adverse"] == ["a conviction"]
    assert items["assessment"]["factors"]["time since"] == "nine years"
    assert items["decision"]["rationale"] == decision.rationale == "assessed: nobody was hurt, nine years"


async def test_an_offer_that_is_not_signed_within_a_week_is_denied(engine):
    """S3-20 S3-12 S3-22 Not a moment earlier; nobody has looked into the record, and a late signature is refused."""
    run = await engine.start(fair_chance, application("record-old"), id="app_1")
    await engine.advance(WEEK - timedelta(microseconds=1))
    assert await run.query("state") == State.CONDITIONAL_OFFER
    await engine.advance(timedelta(microseconds=1))
    decision = await check(engine, run, UNSIGNED)
    assert decision.rationale == "the background check was not authorized in time"
    assert (await run.describe()).ended_at == BEGIN + WEEK
    with pytest.raises(RunTerminal):
        await run.send(SIGNED, signature("record-old"))


async def test_a_signature_counts_until_the_last_moment_and_before_the_offer_is_out(engine):
    """S3-13 S3-20 Sent before anybody waits for it, or just before the week is over."""
    early = await engine.start(fair_chance, application("clean", 1), id="app_1", delay=DAY)
    await early.send(SIGNED, signature("clean"))
    await check(engine, early, PATHS["clean"])
    late = await engine.start(fair_chance, application("clean", 2), id="app_2")
    await engine.advance(WEEK - timedelta(microseconds=1))
    await late.send(SIGNED, signature("clean"))
    await check(engine, late, PATHS["clean"])


@pytest.mark.parametrize("applicant", [*PATHS, "unsigned"])
async def test_an_application_goes_on_with_the_next_engine_wherever_it_was(tmp_path, applicant):
    """S3-24 S3-20 A new engine every day; the week for signing is one week, and nothing is done or recorded twice."""
    database, asked = str(tmp_path / "housing.db"), list[str]()
    first = TestEngine(database, workflows=[fair_chance], start=BEGIN)
    for day in range(9):
        async with TestEngine(
            database, workflows=[fair_chance], clock=first.jumping, substitutes=noting(asked)
        ) as engine:
            run = await engine.start(fair_chance, application(applicant), id="app_1")
            if day == 5 and applicant not in ("low-income", "unsigned"):
                await run.send(SIGNED, signature(applicant), id="signature")
            await engine.settle()
            engine.jumping.advance(DAY)
    async with TestEngine(database, workflows=[fair_chance], clock=first.jumping) as engine:
        expected = PATHS.get(applicant, UNSIGNED)
        await check(engine, engine.get("app_1", fair_chance), expected)
        assert asked == expected[2]
        replay(await record(engine.get("app_1")), fair_chance)


def noting(asked: list[str]) -> dict[Any, Any]:
    """Return stand-ins that do what the stubs do and note that they were asked."""

    def stand_in(name: str) -> Any:
        body = getattr(getattr(housing, name), "function", getattr(housing, name))

        async def noted(*args: Any) -> Any:
            asked.append(name)
            return await body(*args)

        return noted

    return {getattr(housing, name): stand_in(name) for name in PATHS["record-old"][2]}


def test_an_application_killed_at_any_commit_leaves_the_same_evidence(tmp_path):
    """S3-24 S3-19 S3-20 G1 G3 kill -9 before and after each commit: one whole chain, one decision, no step again."""
    script = Path(__file__).parent / "kill_housing.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = json.loads((tmp_path / "reports").read_text())
    killed = [report for report in reports if report["killed"]]
    assert len(killed) >= 12, "it must have been killed before and after every commit"
    assert len({report["left"] for report in killed}) >= 4, "with little and with much of the evidence on record"
    way, kinds, steps = PATHS["record-old"]
    for report in reports:
        where = f"killed {report['moment']} commit {report['commit']}"
        assert report["finished"], where
        assert report["broken"] == [], where
        assert report["kinds"] == kinds, where
        assert report["way"] == way, where
        assert report["verified"] == len(kinds), where
        assert report["state"] == State.APPROVED, where
        assert set(report["asked"]) == set(steps), where
        assert report["again"] == [], where


async def test_a_check_that_cannot_be_made_decides_nothing_until_it_is_retried(engine):
    """S3-20 S3-19 The run fails, not the applicant; the evidence so far stays, and goes on where it was."""

    async def down(application: Application, authorization: Authorization) -> list[str]:
        raise ConnectionError("the agency does not answer")

    engine.substitute(housing.check_background, down)
    run = await engine.start(fair_chance, application("record-old"), id="app_1")
    await run.send(SIGNED, signature("record-old"))
    with pytest.raises(RunFailed):
        await run.result()
    assert [item.kind for item in await engine.audit.evidence("app_1")] == [*QUALIFIED, "authorization"]
    assert (await run.describe()).attributes["state"] == State.BACKGROUND_CHECK_ALLOWED
    engine.substitute(housing.check_background, housing.check_background.function)
    await run.retry()
    await check(engine, run, PATHS["record-old"])


@pytest.mark.parametrize(("state", "to"), list(product(State, State)))
async def test_there_is_no_other_edge(state, to):
    """S3-20 Of all 36 pairs of states only the eight of the law are possible; the others fail and leave no evidence."""

    @workflow(name="mover")
    async def mover(ctx: Context) -> None:
        case = Case(ctx, application("clean"))
        case.state = state
        case.record("decision", to)

    lawful = {(each, after) for each, following in EDGES.items() for after in following}
    assert len(lawful) == 8
    async with TestEngine(workflows=[mover]) as engine:
        run = await engine.start(mover, id="mover")
        if (state, to) in lawful:
            await run.result()
        else:
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert f"from {state} to {to}" in str(failed.value.__cause__)
        kinds = [item.kind for item in await engine.audit.evidence("mover")]
        assert kinds == ["init", "decision"][: 1 + ((state, to) in lawful)]


outcomes = st.fixed_dictionaries(
    {
        "qualified": st.booleans(),
        "signed_after": st.one_of(st.none(), st.integers(0, 10 * 24 * 60)),  # minutes; None: never
        "adverse": st.lists(st.sampled_from(["a conviction", "an eviction", "a debt"]), max_size=2),
        "approved": st.booleans(),
        "failures": st.integers(0, 2),
        "max_resident": st.sampled_from([0, 100]),
    }
)


@given(outcomes)
@settings(max_examples=60)
def test_whatever_the_services_answer_no_other_edge_occurs(outcome):
    """S3-20 S3-19 S3-21 Any answers, signatures at any time or never, failing calls and replays."""
    asyncio.run(_scenario(**outcome))


async def _scenario(qualified, signed_after, adverse, approved, failures, max_resident) -> None:
    tried: dict[str, int] = {}
    seen: list[tuple[str, str]] = []

    def answering(name: str, answer: Any) -> Any:
        async def service(*args: Any) -> Any:
            tried[name] = tried.get(name, 0) + 1
            seen.append((name, await world.get("app_1").query("state")))
            if tried[name] <= failures:
                raise ConnectionError("not now")
            return answer

        return service

    answers = {
        housing.prequalify: answering("prequalify", qualified),
        housing.deliver_offer: answering("deliver_offer", "an offer"),
        housing.check_background: answering("check_background", adverse),
        housing.assess: answering("assess", (approved, {"nature": "harmless"})),
    }
    world = TestEngine(workflows=[fair_chance], start=BEGIN, substitutes=answers, max_resident=max_resident)
    async with world:
        run = await world.start(fair_chance, application("anybody"), id="app_1")
        if signed_after is not None:
            await world.advance(timedelta(minutes=signed_after))
            with suppress(RunTerminal):
                await run.send(SIGNED, signature("anybody"))
        decision = await run.result()
        items = await world.audit.evidence("app_1")
        way = way_of(items)
        assert replay(await record(run), fair_chance).status == "completed"
        assert await run.status() is Status.COMPLETED
        assert (await world.audit.verify_evidence("app_1")).checked == len(items)
    assert all(after in EDGES[State(before)] for before, after in pairwise(way))
    assert way[0] == State.PREQUALIFICATION
    assert way[-1] == decision.state
    assert decision.state in (State.APPROVED, State.DENIED)
    assert decision.evidence_ids == [item.id for item in items] != []
    in_time = signed_after is not None and timedelta(minutes=signed_after) < WEEK
    assert decision.approved is (qualified and in_time and (not adverse or approved))
    allowed = {State.BACKGROUND_CHECK_ALLOWED}
    assert {state for name, state in seen if name == "check_background"} <= allowed, "nobody may look earlier"
    assert ("check_background" in tried) is (qualified and in_time)
    assert ("assess" in tried) is (qualified and in_time and bool(adverse))
