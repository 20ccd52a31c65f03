"""State that several modules write has no owner: a run in memory is changed in its own room alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.engine.runs.aside import Aside
from holdfast.engine.runs.resident import Resident

ENGINE = Path(__file__).parents[2] / "src" / "holdfast" / "engine"
OWNED = {*Resident.__slots__, *Aside.__slots__}


def assigned_from_outside(code: str) -> list[str]:
    """Return the attributes of runs that some code assigns, whatever it calls the run."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in OWNED:
            holder = ast.unparse(node.value)
            if holder.rpartition(".")[2] in ("resident", "owner", "run", "renewed", "aside"):
                found.append(f"{holder}.{node.attr}")
    return found


def test_no_attribute_of_a_run_in_memory_is_assigned_outside_its_room() -> None:
    outside = [path for path in ENGINE.rglob("*.py") if (ENGINE / "runs") not in path.parents]
    assert outside
    assert {path.name: found for path in outside if (found := assigned_from_outside(path.read_text()))} == {}


@pytest.mark.parametrize(
    "code",
    ["resident.phase = 4", "attempt.owner.commits += 1", "resident.aside.letters = []", "resident.row_stale, x = 1, 2"],
)
def test_an_assignment_is_noticed(code: str) -> None:
    assert len(assigned_from_outside(code)) == 1


@pytest.mark.parametrize("code", ["resident.drop()", "verb.attempt = 2", "self.id = 'w'", "resident.active.add(place)"])
def test_what_a_run_is_told_by_its_methods_is_left_alone(code: str) -> None:
    assert assigned_from_outside(code) == []
