"""Conditions: ready-made ones and those made of them, asked of the app's own context before each attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import NotReady, RunFailed, activity
from holdfast.declarative import conditions, sequence, step
from holdfast.errors import BadInput, StepSkipped

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def asked(condition: Any, **says: Any) -> bool | NotReady:
    """Ask a condition about a step that was called at START."""
    return condition(SimpleNamespace(**{"pending_since": START, "now": START, **says}))


async def body(state: dict[str, Any]) -> dict[str, Any]:
    return {"ran": True}


def no(step: Any) -> bool:
    return False


def later(step: Any) -> NotReady:
    return NotReady("the battery is low", MINUTE)


def wordless(step: Any) -> NotReady:
    return NotReady(retry_in=HOUR)


# What each says.


@pytest.mark.parametrize("connected", [True, False, None, 1, "yes"])
def test_connected_means_true_and_nothing_else(connected):
    """S0-28 whenConnected is isConnected === true; whenDisconnected is the opposite."""
    assert conditions.always is not None
    assert asked(conditions.always) is True
    online = asked(conditions.when_connected, is_connected=connected)
    offline = asked(conditions.when_disconnected, is_connected=connected)
    if connected is True:
        assert (online, offline) == (True, NotReady("connected"))
    else:
        assert (online, offline) == (NotReady("not connected"), True)


def test_a_delay_counts_from_the_call_and_says_what_is_left():
    """S0-28 S0-26 since the task is pending"""
    condition = conditions.after_delay(MINUTE)
    assert asked(condition) == NotReady("waits 0:01:00", MINUTE)
    assert asked(condition, now=START + 59 * SECOND) == NotReady("waits 0:01:00", SECOND)
    assert asked(condition, now=START + MINUTE) is True
    assert asked(conditions.after_delay(timedelta(0))) is True


def test_all_says_what_the_first_says_that_is_not_ready():
    """S0-28 S0-26 One that gives no reason is named."""
    assert asked(conditions.all(conditions.always, lambda step: True)) is True
    assert asked(conditions.all(conditions.always, later, no)) == NotReady("the battery is low", MINUTE)
    assert asked(conditions.all(no, later)) == NotReady("no says no")
    assert asked(conditions.all(wordless)) == NotReady("wordless says no", HOUR)


def test_any_says_what_the_one_says_that_is_to_be_asked_first():
    """S0-28 S0-26"""
    assert asked(conditions.any(no, later, conditions.always)) is True
    assert asked(conditions.any(wordless, later)) == NotReady("the battery is low", MINUTE)
    assert asked(conditions.any(later, no)) == NotReady("no says no")
    both = conditions.any(conditions.when_connected, conditions.after_delay(10 * SECOND))
    assert asked(both, is_connected=False) == NotReady("waits 0:00:10", 10 * SECOND)


def test_not_is_ready_when_the_other_is_not():
    """S0-28 They nest, and the reason names what was asked."""
    assert asked(conditions.not_(later)) is True
    assert asked(conditions.not_(conditions.always)) == NotReady("not_(always)")
    nested = conditions.not_(conditions.all(conditions.when_connected, conditions.any(later, conditions.always)))
    assert asked(nested, is_connected=False) is True
    assert asked(nested, is_connected=True) == NotReady("not_(all(when_connected, any(later, always)))")


def test_what_is_no_condition_is_refused():
    """S0-28"""

    async def waits(step: Any) -> bool:
        return True

    for make in (conditions.all, conditions.any):
        with pytest.raises(BadInput, match=r"\(\) needs at least one condition"):
            make()
    for make in (conditions.all, conditions.any, conditions.not_):
        for wrong in (True, waits):
            with pytest.raises(BadInput, match="a condition is a plain function of the step's context, not"):
                make(wrong)
    for delay in (5, -MINUTE):
        with pytest.raises(BadInput, match="delay of after_delay"):
            conditions.after_delay(delay)


# As run_when of activities.


async def test_an_activity_waits_for_the_network(make_engine):
    """S0-12 S0-26 S0-27 S0-28 B10 Skipped with its reason, asked again in half a minute, of a fresh context."""
    world = {"is_connected": False}
    skipped: list[str] = []
    upload = step(
        body, run_when=conditions.when_connected, on_skipped=lambda step, reason: skipped.append(reason), name="upload"
    )
    work = sequence("work", [upload])
    engine = await make_engine(work, start=START, context=lambda: world)
    run = await engine.start(work, {})
    await engine.settle()
    (each,) = await run.steps()
    assert (each.status, each.skips, each.attempts, each.next_attempt_at) == ("skipped", 1, 0, START + 30 * SECOND)
    await engine.advance(40 * SECOND)
    assert skipped == ["not connected"] * 2
    world["is_connected"] = True
    assert await run.result() == {"ran": True}
    (each,) = await run.steps()
    assert (each.status, each.skips, each.attempts, each.started_at) == ("completed", 2, 1, START + MINUTE)


async def test_an_activity_waits_for_its_delay_across_restarts(make_engine, mode):
    """S0-28 S0-26 Exactly so long, from the call on; a replay does not begin to count again."""
    work = sequence("work", [body, step(body, name="later", run_when=conditions.after_delay(HOUR))])
    engine = await make_engine(work, start=START)
    run = await engine.start(work, {}, id="r")
    await engine.advance(HOUR / 2)
    assert [each.status for each in await run.steps()] == ["completed", "skipped"]
    if mode != "memory":
        await engine.stop()
        engine = await make_engine(work, clock=engine.jumping)
        run = engine.get("r")
    await run.result()
    assert (await run.steps())[1].started_at == START + HOUR


async def test_conditions_made_of_others_work_as_run_when(make_engine):
    """S0-28 B10 The next check is when the condition that said no wants it."""
    world: dict[str, Any] = {"is_connected": True, "battery_level": 0.1}

    def charged(step: Any) -> bool | NotReady:
        return step.battery_level > 0.2 or NotReady("battery low", 5 * MINUTE)

    both = conditions.all(conditions.when_connected, charged)
    work = sequence("work", [step(body, run_when=conditions.any(both, conditions.after_delay(HOUR)))])
    engine = await make_engine(work, start=START, context=lambda: world)
    first, second = await engine.start(work, {}), await engine.start(work, {})
    await engine.settle()
    (each,) = await first.steps()
    assert each.next_attempt_at == START + 5 * MINUTE
    world["battery_level"] = 0.5
    assert await first.result() == {"ran": True}
    assert (await first.steps())[0].started_at == START + 5 * MINUTE
    await second.result()


async def test_a_condition_may_look_at_what_the_activity_is_called_with(make_engine):
    """S0-26 fn(ctx incl. input)"""
    work = sequence("work", [step(body, run_when=lambda step: step.input["size"] < 10 or NotReady("too big", HOUR))])
    engine = await make_engine(work)
    small, big = await engine.start(work, {"size": 1}), await engine.start(work, {"size": 11})
    await engine.settle()
    assert [each.status for each in await small.steps()] == ["completed"]
    assert [each.status for each in await big.steps()] == ["skipped"]


async def test_too_many_skips_fail_the_run(make_engine):
    """S0-27 S0-8 B9 B10 skipped -> failed; the last reason is in the error, and in the dead letter."""

    @activity(run_when=conditions.when_connected, max_skips=2)
    async def upload(state: dict[str, Any]) -> None: ...

    work = sequence("work", [upload])
    engine = await make_engine(work, context=lambda: {"is_connected": False})
    run = await engine.start(work, {})
    with pytest.raises(RunFailed, match="skipped 3 times, more than max_skips allows: not connected") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, StepSkipped)
    (letter,) = await engine.dead_letters.list()
    assert (letter.kind, letter.step) == ("work", "upload")


async def test_an_app_that_says_nothing_of_its_network_is_told_so(make_engine):
    """S0-28 B10 A condition that raises is a failed attempt, not a step that waits for ever."""
    work = sequence("work", [step(body, run_when=conditions.when_connected)])
    engine = await make_engine(work)
    with pytest.raises(RunFailed, match=r"no 'is_connected', nor does Engine\(context=\.\.\.\) provide it"):
        await engine.execute(work, {})
