"""An application killed before and after each commit, then continued; run by test_fair_chance_housing.py.

usage: kill_housing.py WORK_DIR        writes WORK_DIR/reports, one JSON object per kill
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.fair_chance_housing import SIGNED, Application, Authorization, fair_chance
from tests.support.scripts.crash_everywhere import KillingStore, fork, was_killed

from holdfast import Engine, RunHandle, RunTerminal
from holdfast.errors import NoSuchRun
from holdfast.testing.invariants import violations

APPLICATION = Application("app_1", "record-old", "prop_789", "unit_101", "org_111")
BODIES = {"looking": "prequalify", "offering": "deliver_offer", "checking": "check_background", "weighing": "assess"}


async def live(path: str, kill_at: int, moment: str, log: Path) -> None:
    """Drive the application until it is decided or the process is killed; what its steps print goes into a file."""
    os.dup2(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    store = KillingStore(path, kill_at, moment)
    async with Engine(store=store, workflows=[fair_chance], retention=None) as engine:
        run = await engine.start(fair_chance, APPLICATION, id="app_1")
        with suppress(RunTerminal):
            await run.send(SIGNED, Authorization(datetime(2026, 3, 2, tzinfo=UTC), "record-old"), id="signature")
        assert (await run.result()).approved


async def look(path: str, out: Path) -> None:
    """Write what is on record, what is done and what is broken."""
    async with Engine(path, run_workflows=False) as engine:
        items = await engine.audit.evidence("app_1")
        moves = [item.data for item in items if item.data["from"] != item.data["to"]]
        seen = {
            "broken": await violations(engine.store),
            "kinds": [item.kind for item in items],
            "way": [item.data["from"] for item in items][:1] + [move["to"] for move in moves],
            "verified": (await engine.audit.verify_evidence("app_1")).checked,
            "state": None,
            "done": [],
        }
        with suppress(NoSuchRun):
            run: RunHandle[Any] = engine.get("app_1")
            seen["done"] = [step.name for step in await run.steps() if step.status == "completed"]
            seen["state"] = (await run.describe()).attributes.get("state")
        out.write_text(json.dumps(seen))


def asked(log: Path) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [BODIES[line.split()[0]] for line in lines]


def main(work: Path) -> None:
    reports, reached, commit = [], True, 0
    while reached:
        reached, commit = False, commit + 1
        for moment in ("before", "after"):
            place = work / f"{commit}-{moment}"
            place.mkdir()
            path = str(place / "housing.db")
            killed = was_killed(fork("A", live, path, commit, moment, place / "A"))
            reached = reached or killed
            fork("-", look, path, place / "left")
            finished = fork("B", live, path, 0, "never", place / "B") == 0
            fork("-", look, path, place / "seen")
            left, seen = (json.loads((place / name).read_text()) for name in ("left", "seen"))
            report: dict[str, Any] = {"commit": commit, "moment": moment, "killed": killed, "finished": finished}
            report |= {"left": len(left["kinds"]), "asked": asked(place / "A") + asked(place / "B")}
            report |= {"again": [name for name in asked(place / "B") if name in left["done"]]}
            reports.append(report | seen | {"broken": left["broken"] + seen["broken"]})
    (work / "reports").write_text(json.dumps(reports))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
