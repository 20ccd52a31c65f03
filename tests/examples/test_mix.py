"""All examples at once, on one file, while their workers are killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from examples.clean_up import clean_up
from examples.demo import STEPS
from tests.examples.mix import TICKS, Planned, output_of, plan, put_schedule
from tests.support.paths import ROOT

from holdfast import Engine, RunHandle, Status
from holdfast.replay import entry as entries
from holdfast.testing.invariants import violations

WORKERS = 2


class Crew:
    """Two workers, one of which keeps no run in memory; whoever is killed is replaced."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "tests.examples.mix", str(folder), str(count), str(seed), "--fast"]
        self._environment = os.environ | {"DEMO_EFFECTS": str(folder / "effects.jsonl")}
        self._environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.processes: list[subprocess.Popen[bytes]] = []

    def begin(self, place: int) -> subprocess.Popen[bytes]:
        environment = self._environment | {"MIX_RESIDENT": str(0 if place else 1000)}
        with open(self._folder / "output", "ab") as output:
            return subprocess.Popen(self._command, env=environment, cwd=self._folder, stdout=output, stderr=output)

    def allow(self, count: int) -> None:
        """Let the workers start so many of the runs."""
        (self._folder / "limit").write_text(str(count))

    def in_a_step(self) -> int:
        """Wait until one of them is inside a step of a demonstration and return which."""
        effects = self._folder / "effects.jsonl"
        while not (effects.exists() and (lines := effects.read_text().splitlines())):
            time.sleep(0.002)
        return [process.pid for process in self.processes].index(json.loads(lines[-1])["pid"])

    def kill(self, place: int, after: float) -> bool:
        """Kill one some time after it began to work; True if it was alive then and died of it."""
        victim = self.processes[place]
        ready = self._folder / f"ready-{victim.pid}"
        while not ready.exists() and victim.poll() is None:
            time.sleep(0.002)
        time.sleep(after)
        victim.kill()
        self.processes[place] = self.begin(place)
        return victim.wait() == -signal.SIGKILL

    def finish(self, patience: float) -> list[int | None]:
        """Wait until all have ended by themselves and return their exit codes, None for one that works on."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and None in (codes := [process.poll() for process in self.processes]):
            time.sleep(0.02)
        return codes

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.allow(0)
        self.processes = [self.begin(place) for place in range(WORKERS)]
        try:
            yield
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def said(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-5_000:]


@pytest.mark.parametrize(
    ("count", "kills", "lost"),
    [(50, 6, 1), pytest.param(500, 40, 10, marks=pytest.mark.slow)],
    ids=["small", "full"],
)
async def test_all_examples_end_as_their_models_say_though_their_workers_are_killed(tmp_path, count, kills, lost):
    """G1 G3 G4 G11 Killed at random on one file: every run in the state its model predicts, every invariant kept."""
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(1_000_000)))
    dice = random.Random(seed)
    crew = Crew(tmp_path, count, seed)
    async with Engine(tmp_path / "mix.db", workflows=[clean_up], run_workflows=False) as engine:
        await put_schedule(engine, tmp_path)
    with crew.at_work():
        for number in range(kills):
            crew.allow(count * (number + 1) // (kills + 1))  # so that there is something to do at each kill
            place, after = dice.randrange(WORKERS), dice.uniform(0, 0.8)
            hit = crew.kill(place, after) if number else crew.kill(crew.in_a_step(), 0)
            assert hit, f"seed {seed}: kill {number} must hit a worker that is at work\n{crew.said()}"
        crew.allow(count)
        ended = crew.finish(patience=300 + count)
        assert ended == [0] * WORKERS, f"seed {seed}: {ended}, {await still_open(tmp_path)}\n{crew.said()}"
    async with Engine(tmp_path / "mix.db", run_workflows=False) as engine:
        problems = await violations(engine.store)
        planned = plan(tmp_path, count, seed)
        for each in planned:
            problems += [f"{each.id}: {problem}" for problem in await differences(engine, each)]
        problems += await differences_of_the_schedule(engine)
        problems += differences_of_effects(tmp_path / "effects.jsonl", planned)
        assert problems == [], f"seed {seed}: {problems}"
        assert (await engine.audit.verify()).ok
        assert await lost_attempts(engine, planned) >= lost, f"seed {seed}: the kills must have hit steps"


async def still_open(folder: Path) -> list[str]:
    """Return the runs that have not ended, and what they wait for."""
    async with Engine(folder / "mix.db", run_workflows=False) as engine:
        runs = await engine.runs(limit=1000)
        return [
            f"{run.id} is {run.status}: {run.waiting_for} {run.error}" for run in runs if not run.status.is_terminal
        ]


async def differences(engine: Engine, model: Planned) -> list[str]:
    """Return in what a run differs from its model."""
    run: RunHandle[Any] = engine.get(model.id)
    found = await run.describe()
    problems = []
    if found.status is not model.status:
        problems.append(f"{found.status}, not {model.status}: {found.error}")
    elif model.outputs and output_of(found.output) not in model.outputs:
        problems.append(f"{found.output}, not {' or '.join(map(str, model.outputs))}")
    if model.files is not None and {path.name for path in Path(model.args[0]).iterdir()} != {*model.files}:
        problems.append(f"the files left are not {model.files}")
    items = await engine.audit.evidence(model.id)
    if tuple(item.kind for item in items) != model.evidence:
        problems.append(f"evidence of {[item.kind for item in items]}, not {model.evidence}")
    if items and not (await engine.audit.verify_evidence(model.id)).ok:
        problems.append("its evidence was changed")
    undone = tuple(each["name"] for each in found.compensation or [] if each["status"] == "completed")
    if undone != model.undone:
        problems.append(f"undone: {undone}, not {model.undone}")
    letters = tuple(letter.step for letter in await engine.dead_letters.list(run=model.id))
    if letters != model.letters:
        problems.append(f"dead letters {letters}, not {model.letters}")
    return problems


async def differences_of_the_schedule(engine: Engine) -> list[str]:
    """Return what is wrong with the runs that a schedule started: one for each tick, and all completed."""
    last = await engine.schedules.get("tick")
    runs = [run for run in await engine.runs(limit=1000, workflow="clean_up") if run.id.startswith("tick:")]
    ended = Counter(run.status for run in runs)
    return [] if ended == {Status.COMPLETED: TICKS} and last.next_at is None else [f"ticks: {ended}, {last}"]


def differences_of_effects(path: Path, planned: list[Planned]) -> list[str]:
    """Return which bodies of the demonstrations ran twice under one attempt number, or never to their end."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    begun = Counter((line["key"], line["attempt"]) for line in lines if line["what"] == "begun")
    problems = [f"{key}: attempt {attempt} began {n} times" for (key, attempt), n in begun.items() if n > 1]
    finished = {line["key"] for line in lines if line["what"] == "finished"}
    wanted = {f"{each.id}:{step}" for each in planned if each.workflow.name == "demo" for step in STEPS}
    return problems + [f"{key} never finished" for key in wanted - finished]


async def lost_attempts(engine: Engine, planned: list[Planned]) -> int:
    """Return how many attempts were cut off."""
    lost = 0
    for each in planned:
        lost += sum(fact.kind == entries.AttemptLost.word for fact in await engine.get(each.id).history())
    return lost
