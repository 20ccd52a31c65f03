"""A run in memory: what it keeps while it is parked, and how far it has come on its way out."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from tests.support.driving import START, execution

from holdfast import Context, workflow
from holdfast.contract.rows import Status
from holdfast.contract.turns import CommitTurn, State
from holdfast.engine.runs.aside import Aside
from holdfast.engine.runs.resident import Phase, Resident


@workflow
async def nothing(ctx: Context) -> None:
    pass


@pytest.fixture
def resident() -> Resident:
    return Resident("r", 1, 1, nothing, execution(nothing), 0)


def test_what_a_run_has_only_at_times_costs_little_beside_what_is_in_it() -> None:
    """Very many runs may be parked that wait for a queue or a key."""
    aside = Aside()
    made = [getattr(aside, name) for name in Aside.__slots__]
    assert sys.getsizeof(aside) + sum(sys.getsizeof(each) for each in made if isinstance(each, list | set | dict)) < 400


def test_what_a_run_has_only_at_times_is_its_own(resident: Resident) -> None:
    """What is empty may be shared by all runs, so nothing may be put into it in place."""
    resident.read_rows([1])
    resident.read_rows([2, 3])
    resident.events_came({"paid"})
    resident.withdraw_attempts(["a0"])
    assert resident.key_is_free("a1") is None
    assert resident.aside is not None
    assert [*resident.aside.rows_read] == [1, 2, 3]
    assert [*resident.aside.stale_waits, *resident.aside.keys_freed] == ["paid", "a1"]
    assert Aside().empty
    assert Resident("s", 2, 1, nothing, execution(nothing), 0).aside is None


def test_what_went_into_a_commit_is_forgotten_and_what_is_for_longer_stays(resident: Resident) -> None:
    resident.read_rows([1])
    resident.key_is_free("a1")
    resident.submitted(CommitTurn(key=1, epoch=1, at=START, consumed=[1]))
    assert resident.aside is not None
    assert [*resident.aside.rows_read, *resident.aside.keys_freed] == ["a1"]


def test_a_run_on_its_way_out_does_not_come_back(resident: Resident) -> None:
    """Whatever is still noted about a run that was dropped, it stays dropped."""
    release = CommitTurn(key=1, epoch=1, at=START, state=State(status=Status.SUSPENDED, seen=0, released=True))
    phases: list[Phase] = []
    for note in (
        partial(resident.submitted, release),
        resident.finish,
        partial(resident.begin_pause, None),
        resident.drop,
        partial(resident.submitted, release),
        resident.finish,
    ):
        note()
        phases.append(resident.phase)
    assert phases == [Phase.RELEASING] * 3 + [Phase.DROPPED] * 3
