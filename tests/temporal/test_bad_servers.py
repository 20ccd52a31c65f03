"""A server, a namespace or a payload that cannot serve is a named error with the remedy, and nothing is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows
from tests.temporal.server import missing, temporal_server

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Context, workflow
from holdfast.errors import CannotOpen, PayloadTooLarge, RunBlocked, UnsupportedServer
from holdfast.temporal import TemporalEngine
from holdfast.temporal.client.connecting import address_of, check_server

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share


@workflow
async def unheard_of(ctx: Context) -> str:
    return await ctx.step(flows.mark, "made")


@workflow
async def echo(ctx: Context, text: str) -> str:
    return text


async def test_a_namespace_that_does_not_exist_is_named_with_the_command_that_makes_it(server):
    address = server.replace("/default", "/nowhere")
    with pytest.raises(CannotOpen, match="no namespace 'nowhere': temporal operator namespace create"):
        await TemporalEngine(address, workflows=[echo]).open()


async def test_a_missing_search_attribute_is_named_with_the_command_that_makes_it():
    with temporal_server(tags=False) as address:
        with pytest.raises(CannotOpen, match=r"search-attribute create .* --name HoldfastTags --type KeywordList"):
            await TemporalEngine(address, workflows=[echo]).open()
        async with TemporalEngine(address, workflows=[echo], tags=False) as engine:
            assert await engine.execute(echo, "all the same") == "all the same"


async def test_a_server_that_is_too_old_is_named_with_the_version_it_needs():
    """There is no such server in the index: one that says so stands for it."""

    async def get_system_info(_: object) -> Any:
        return SimpleNamespace(server_version="1.24.2")

    old: Any = SimpleNamespace(workflow_service=SimpleNamespace(get_system_info=get_system_info))
    with pytest.raises(UnsupportedServer, match=r"is 1\.24\.2: upgrade it to 1\.25 or newer"):
        await check_server(old, address_of("temporal://localhost"), tags=True)


async def test_a_payload_above_the_limit_is_refused_before_anything_is_started(make_engine):
    engine = await make_engine(echo, flows.waiting_kid)
    with pytest.raises(PayloadTooLarge, match=r"the input of workflow 'echo' takes .* keep large data elsewhere"):
        await engine.start(echo, "x" * 2_000_001, id="large")
    assert await engine.find("large") is None
    run = await engine.start(flows.waiting_kid)
    with pytest.raises(PayloadTooLarge, match="message 'go'"):
        await run.send("go", "x" * 2_000_001)
    await run.send("go", "small")
    assert await run.result() == "small"


async def test_a_run_of_a_workflow_that_no_worker_knows_waits_for_one_that_does(make_engine):
    stranger = await make_engine(echo)
    run = await stranger.start("unheard_of", id="unheard")
    with pytest.raises(RunBlocked, match="unheard_of"):
        await run.result()
    await stranger.stop()
    knowing = await make_engine(unheard_of)

    async def recovered() -> bool:
        return bool(await knowing.get("unheard").recover())

    await eventually(recovered)
    assert await knowing.get("unheard", unheard_of).result() == "made"
