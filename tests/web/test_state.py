"""The graph and the state of a run over HTTP, where its history and the code part, and who may see them."""

from __future__ import annotations

from tests.support.asgi import Browser
from tests.support.command_cases import adder
from tests.web.shop import pack, viewer

from holdfast import Context, activity, workflow
from holdfast.looking import LocalDesk
from holdfast.testing import TestEngine
from holdfast.web import dashboard


async def test_a_reader_sees_what_a_run_answers_and_a_viewer_how_its_nodes_stand():
    async with TestEngine(workflows=[adder]) as engine:
        await engine.start(adder, id="run")
        await engine.settle()
        reader = Browser(dashboard(engine, authenticate=viewer("reader")))
        state = (await reader.get("/api/v1/runs/run/state")).json
        assert state == {"run": "run", "items": [{"name": "total", "answer": 0, "error": ""}], "said": ""}
        page = Browser(dashboard(engine, authenticate=viewer()))
        assert (await page.get("/api/v1/runs/run/state")).status == 403
        graph = (await page.get("/api/v1/runs/run/graph")).json
        assert (graph["workflow"], graph["declared"], graph["nodes"]) == ("adder", False, [])
        assert (await page.get("/api/v1/runs/none/graph")).status == 404


@workflow(name="fulfil")
async def before(ctx: Context) -> None:
    await ctx.step(pack, "kettle")
    await ctx.receive("approved")


@workflow(name="fulfil")
async def after(ctx: Context) -> None:
    await ctx.step(weigh, "kettle")
    await ctx.step(pack, "kettle")
    await ctx.receive("approved")


@activity
async def weigh(item: str) -> None: ...


async def test_a_reader_sees_call_beside_call_where_a_history_and_the_code_part(tmp_path):
    """With the lines of code there, and whether it fits with what is proposed; over HTTP it is the same desk."""
    database = f"sqlite:///{tmp_path / 'shop.db'}"
    async with TestEngine(database, workflows=[before]) as engine:
        await engine.start(before, id="run")
        await engine.settle()
        fits = await LocalDesk(engine.store, code=engine.registry).misfit("run")
        assert (fits.misfit, fits.lines, fits.said) == (None, [], "its history fits the code at hand: recover it")
        without = await LocalDesk(engine.store).misfit("run")
        assert without.said == "no code is at hand for workflow 'fulfil'"
    async with TestEngine(database, workflows=[after]) as engine:
        page = Browser(dashboard(engine, authenticate=viewer("reader")))
        found = (await page.get("/api/v1/runs/run/misfit")).json
        misfit = found["misfit"]
        assert (misfit["kind"], misfit["trial"]["fits"]) == ("new-call", True)
        assert [[call["path"] for call in misfit[side]] for side in ("recorded", "present")] == [
            ["pack", "receive approved"], ["weigh"],
        ]  # fmt: skip
        [line] = [line["text"] for line in found["lines"] if line["n"] == misfit["line"]]
        assert line.strip() == 'await ctx.step(weigh, "kettle")'
        assert (await page.get("/api/v1/runs/none/misfit")).status == 404
        assert (await Browser(dashboard(engine, authenticate=viewer())).get("/api/v1/runs/run/misfit")).status == 403
