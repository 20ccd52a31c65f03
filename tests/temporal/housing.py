"""The housing example, on a database and on Temporal, in processes that are killed: `python housing.py ROLE ...`.

run DATABASE ID COMMITS       begin an application, and die after so many commits
move DATABASE ADDRESS CALLS   move what is open, and die after so many calls of the store and the server
back DATABASE ADDRESS CALLS   bring back what is open there, likewise
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast import Engine

EXAMPLE = Path(__file__).parents[2] / "examples" / "fair_chance_housing.py"
SIGNED_AT = datetime(2030, 1, 1, tzinfo=UTC)


def load() -> Any:
    """Return the example as it is: Temporal shares no results by its idempotency key, and gives it to the body."""
    spec = importlib.util.spec_from_file_location("fair_chance_housing", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Fuse:
    """Kills this process after so many calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def around(self, place: Any, *names: str) -> None:
        """Count the calls of methods."""
        for name in names:
            setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(method):

            async def counted(*args: Any, **kwargs: Any) -> Any:
                made = await method(*args, **kwargs)
                self.burn()
                return made

            return counted

        def plain(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            if made is not None:
                self.burn()
            return made

        return plain

    def burn(self) -> None:
        """Count one call."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def application(housing: Any, run_id: str) -> Any:
    return housing.Application(run_id, "user_456-record", "prop_789", "unit_101", "org_111")


async def run(database: str, run_id: str, commits: int) -> None:
    housing = load()
    async with Engine(database, workflows=[housing.fair_chance]) as engine:
        Fuse(commits).around(engine.store, "apply", "apply_now")
        begun = await engine.start(housing.fair_chance, application(housing, run_id), id=run_id)
        await begun.send(housing.SIGNED, housing.Authorization(SIGNED_AT, "user_456"), id="signature")
        await begun.result()


async def move(database: str, address: str, calls: int) -> None:
    from holdfast.moving.mover import Mover
    from holdfast.stores import open_store
    from holdfast.temporal.client.target import MoveTarget

    store, target = open_store(database, "process"), await MoveTarget.connect(address)
    await store.open()
    fuse = Fuse(calls)
    fuse.around(store, "apply")
    fuse.around(target, "start", "forward", "resume")
    report = await Mover(store, target, by="ada").move()
    await store.close()
    if report.left:
        raise SystemExit(f"left behind: {report.left}")


async def back(database: str, address: str, calls: int) -> None:
    from holdfast.moving.returner import Returner
    from holdfast.stores import open_store
    from holdfast.temporal.client.source import MoveSource

    store, source = open_store(database, "process"), await MoveSource.connect(address)
    await store.open()
    fuse = Fuse(calls)
    fuse.around(store, "apply")
    fuse.around(source, "hold", "leave")
    report = await Returner(source, store, "here", by="ada").move()
    await store.close()
    if report.left:
        raise SystemExit(f"left behind: {report.left}")


if __name__ == "__main__":
    role, first, second, number = sys.argv[1:]
    asyncio.run({"run": run, "move": move, "back": back}[role](first, second, int(number)))
