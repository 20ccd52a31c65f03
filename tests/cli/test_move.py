"""`holdfast move` where no cluster is needed: what is refused before anything is asked of the runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, workflow
from holdfast.cli.main import main
from holdfast.stores import open_store
from holdfast.testing import TestEngine

pytest.importorskip("temporalio")


@workflow
async def waiter(ctx: Context) -> str:
    return await ctx.receive("go", str)


@pytest.fixture
def database(tmp_path: Path) -> str:
    async def fill() -> None:
        async with TestEngine(str(tmp_path / "shop.db"), workflows=[waiter]) as engine:
            await engine.start(waiter, id="order-1")
            await engine.settle()

    asyncio.run(fill())
    return str(tmp_path / "shop.db")


def standing(database: str) -> tuple[str, int]:
    async def look() -> tuple[str, int]:
        store = open_store(database)
        await store.open(look_only=True)
        row = await store.get("order-1")
        await store.close()
        assert row is not None
        return str(row.status), row.epoch

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["no.db", "temporal://127.0.0.1:1/default"], 4, "there is no such database"),
        (["{db}", "postgresql://elsewhere/x"], 2, "is no address of a Temporal server: write temporal://host:7233"),
        (["{db}", "temporal://127.0.0.1:1/default"], 4, "no Temporal server answers at 127.0.0.1:1"),
        (["{db}", "temporal://127.0.0.1:1/default", "--app", "nothing"], 2, "write module:attribute"),
        (["{db}", "temporal://127.0.0.1:1/default", "--grace", "soon"], 2, "write a number and s, min, h or d"),
    ],
)
def test_what_cannot_be_moved_is_refused_and_the_runs_are_as_they_were(
    database: str, capsys: Any, given: list[str], code: int, said: str
) -> None:
    """S3-16: an address that is none, a server that does not answer, code that is not there."""
    before = standing(database)
    assert main(["move", *(each.replace("{db}", database) for each in given)]) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert standing(database) == before
