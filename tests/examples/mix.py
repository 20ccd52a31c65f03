"""The mix of all examples: what is started, what must become of it, and a worker that works until it has.

usage: mix.py FOLDER COUNT SEED        work on FOLDER/mix.db until everything has ended

The plan is a function of count and seed, so every worker starts the same runs and sends the same messages, under ids
that make a repetition harmless. How a run must end follows from its input alone: the examples' services are stubs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from examples import (
    agent_loop,
    build_graph,
    clean_up,
    demo,
    fair_chance_housing,
    order,
    order_saga,
    photo_upload,
    reminder,
)
from examples.fair_chance_housing import SIGNED, Application, Authorization, State

from holdfast import Engine, RunTerminal, Status
from holdfast.definitions import Workflow

TICKS = 5
A_DAY = timedelta(days=1)
FOUR: tuple[str, ...] = ("init", "prequalification", "offer", "authorization")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run, and its model: how it ends, with which of these results, and what it leaves behind."""

    id: str
    workflow: Workflow[Any, Any]
    args: tuple[Any, ...]
    messages: tuple[tuple[str, Any], ...] = ()
    status: Status = Status.COMPLETED
    outputs: tuple[Any, ...] = ()
    evidence: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None


def an_order(id: str, dice: random.Random, folder: Path) -> Planned:
    approved = dice.random() < 0.7
    return Planned(
        id=id,
        workflow=order.fulfil,
        args=(order.Order(id, "kettle", 12_900),),
        messages=(("approval", approved),),
        outputs=(f"payment of {id}, parcel of {id}" if approved else "not approved",),
    )


def an_agent(id: str, dice: random.Random, folder: Path) -> Planned:
    approved = dice.random() < 0.5
    return Planned(
        id=id,
        workflow=agent_loop.agent,
        args=("clean up the log files",),
        messages=(("approval", approved),),
        outputs=("done: deleted app.log.7" if approved else "done: a person refused",),
    )


def a_reminder(id: str, dice: random.Random, folder: Path) -> Planned:
    stopped = dice.random() < 0.3
    all_three = f"reminded {id} 3 times"
    return Planned(
        id=id,
        workflow=reminder.reminder,
        args=(id, 3),
        messages=(("stop", None),) if stopped else (),
        # The stop is sent right after the start, but whoever sends it may be killed in between.
        outputs=("stopped after 1 reminders", "stopped after 2 reminders", all_three) if stopped else (all_three,),
    )


def a_demonstration(id: str, dice: random.Random, folder: Path) -> Planned:
    number = int(id.rpartition("-")[2])
    return Planned(
        id=id,
        workflow=demo.fulfil,
        args=(demo.Order(number, "kettle", 4_900),),
        outputs=({"payment": f"payment-{number}", "parcel": f"parcel-{number}"},),
    )


def an_application(id: str, dice: random.Random, folder: Path) -> Planned:
    applicant = dice.choice(["low-income", "clean", "record-old", "record-recent"])
    signed = dice.random() < 0.75
    state, evidence = State.DENIED, FOUR
    if applicant == "low-income":
        evidence = FOUR[:2]
    elif signed:
        evidence = (*FOUR, "check") if applicant == "clean" else (*FOUR, "check", "assessment")
        state = State.DENIED if applicant == "record-recent" else State.APPROVED
    patience = timedelta(days=7) if signed else timedelta(seconds=1)
    return Planned(
        id=id,
        workflow=fair_chance_housing.fair_chance,
        args=(Application(id, f"{applicant}-{id}", "prop_789", "unit_101", "org_111"), patience),
        messages=((SIGNED, Authorization(datetime(2026, 3, 2, tzinfo=UTC), id)),) if signed else (),
        outputs=(state,),
        evidence=(*evidence, "decision"),
    )


def a_clean_up(id: str, dice: random.Random, folder: Path) -> Planned:
    old = dice.randrange(4)
    place = folder / f"{id}.files"
    if not place.exists():
        # Whole or not at all, for whoever makes it may be killed or not be alone.
        making = folder / f"{id}.{os.getpid()}"
        making.mkdir()
        for number in range(old + 1):
            (making / f"upload-{number}").touch()
            if number < old:
                os.utime(making / f"upload-{number}", (0, 0))
        with suppress(OSError):
            making.rename(place)
    kept = (f"upload-{old}",)
    return Planned(id=id, workflow=clean_up.clean_up, args=(str(place), A_DAY), outputs=(old,), files=kept)


def a_photo(id: str, dice: random.Random, folder: Path) -> Planned:
    photo = {"move_id": id, "uri": f"file://{id}.jpg", "urgent": dice.random() < 0.5}
    digest = hashlib.sha256(f"file://{id}.jpg".encode()).hexdigest()[:8]
    return Planned(
        id=id,
        workflow=photo_upload.photo_upload,
        args=(photo,),
        outputs=(photo | {"uri": None, "hash": digest, "key": f"photos/{digest}"},),
    )


def a_saga(id: str, dice: random.Random, folder: Path) -> Planned:
    item = dice.choice(["kettle", "piano"])
    order = {"item": item, "cents": 100}
    if item == "piano":
        ending: dict[str, Any] = {"status": Status.FAILED, "letters": ("ship",), "undone": ("refund", "release")}
    else:
        done = {"shelf": "shelf 6", "payment": "payment for a kettle", "parcel": "parcel with a kettle"}
        ending = {"outputs": (order | done,)}
    return Planned(id=id, workflow=order_saga.order_saga, args=(order,), **ending)


def a_build(id: str, dice: random.Random, folder: Path) -> Planned:
    commit = f"{id}@{len(id)}"
    results = {"checkout": commit, "lint": 0, "build_client": f"client-{commit}", "build_server": f"server-{commit}"}
    results |= {"try_together": True, "publish": f"published server-{commit}"}
    return Planned(id=id, workflow=build_graph.build, args=(id,), outputs=(results,))


MAKERS: tuple[Callable[[str, random.Random, Path], Planned], ...] = (
    a_demonstration,  # first, for the first kill is inside one of its steps
    an_order,
    an_agent,
    a_reminder,
    an_application,
    a_clean_up,
    a_photo,
    a_saga,
    a_build,
)
WORKFLOWS: tuple[Workflow[Any, Any], ...] = (
    order.fulfil,
    agent_loop.agent,
    reminder.reminder,
    demo.fulfil,
    fair_chance_housing.fair_chance,
    clean_up.clean_up,
    photo_upload.photo_upload,
    order_saga.order_saga,
    build_graph.build,
)


def plan(folder: Path, count: int, seed: int) -> list[Planned]:
    """Return what is started, the same for everybody who asks."""
    dice = random.Random(seed)
    makers = [MAKERS[number % len(MAKERS)] for number in range(count - TICKS)]
    return [maker(f"{maker.__name__.replace('_', '-')}-{n}", dice, folder) for n, maker in enumerate(makers)]


def output_of(value: Any) -> Any:
    """Return the part of a result that a model knows."""
    return State(value["state"]) if isinstance(value, dict) and "evidence_ids" in value else value


async def work(folder: Path, count: int, seed: int) -> None:
    """Start everything that may be started and is not yet, and work until all of it has ended."""
    planned = plan(folder, count, seed)
    max_resident = int(os.environ["MIX_RESIDENT"])
    async with Engine(
        folder / "mix.db",
        workflows=WORKFLOWS,
        limits=[agent_loop.MODEL],
        context=photo_upload.phone,
        retention=None,
        max_resident=max_resident,
    ) as engine:
        (folder / f"ready-{os.getpid()}").touch()
        started = ended = 0
        while ended < count:
            allowed = int((folder / "limit").read_text() or 0)  # whoever raises it may just be writing it
            await asyncio.gather(*(begin_one(engine, each) for each in planned[started:allowed]))
            started = max(started, allowed)
            stats = await engine.stats()
            ended = sum(stats[status] for status in Status if status.is_terminal)
            await asyncio.sleep(0.05)


async def put_schedule(engine: Engine, folder: Path) -> None:
    """Let a schedule start some more runs."""
    begin = datetime.now(UTC) + timedelta(seconds=1)
    until = begin + timedelta(seconds=TICKS - 1)
    every = timedelta(seconds=1)
    (folder / "empty").mkdir()
    await engine.schedules.put(
        "tick",
        clean_up.clean_up,
        str(folder / "empty"),
        A_DAY,
        every=every,
        starting=begin,
        until=until,
        catch_up="all",
        overlap="allow",
    )


async def begin_one(engine: Engine, planned: Planned) -> None:
    run = await engine.start(planned.workflow, *planned.args, id=planned.id)
    for name, payload in planned.messages:
        with suppress(RunTerminal):
            await run.send(name, payload, id=f"{planned.id}:{name}")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
