"""Which store for what: a key space takes the open runs of one process; transactions and many workers are for SQL."""

from __future__ import annotations

import pytest

from holdfast import Context, Engine, activity, workflow
from holdfast.errors import HoldfastError
from holdfast.stores.keyvalue.addresses import open_key_space

PENDING = 1000


@activity(transaction=True)
def pay() -> None: ...


@workflow
async def paying(ctx: Context) -> None:
    await ctx.step(pay)


@workflow
async def waiting(ctx: Context, number: int) -> int:
    return number + await ctx.receive("go", int)


def test_a_redis_server_has_an_engine_under_a_name_unless_another_is_given():
    """S0-47 The id of the storage: all processes that say nothing else mean the same key space."""
    assert open_key_space("redis", "//localhost/0").shown.endswith("?space=engine")
    assert open_key_space("redis", "//localhost/0?space=shop").shown.endswith("?space=shop")


async def test_a_key_space_takes_a_thousand_open_runs_and_has_them_after_it_is_opened_again(tmp_path):
    """S0-47 The key-value backend is good for that many that are pending."""
    address = f"kv+dir:///{tmp_path / 'runs'}"
    async with Engine(address, workflows=[waiting]) as engine:
        for number in range(PENDING):
            await engine.start(waiting, number, id=f"run-{number}")
    async with Engine(address, workflows=[waiting]) as engine:
        for number in range(0, PENDING, 100):
            await engine.get(f"run-{number}").send("go", 1)
            assert await engine.get(f"run-{number}", waiting).result() == number + 1
        assert len(await engine.runs(limit=PENDING)) == PENDING


@pytest.mark.parametrize("address", ["kv+dir:///{}", "sqlite:///{}"])
async def test_transactions_are_for_sql(tmp_path, address):
    """S0-47 Refused by name on a key space, before anything is run."""
    engine = Engine(address.format(tmp_path / "runs"), workflows=[paying])
    if address.startswith("kv"):
        with pytest.raises(HoldfastError, match="transaction"):
            async with engine:
                await engine.execute(paying)
    else:
        async with engine:
            await engine.execute(paying)
