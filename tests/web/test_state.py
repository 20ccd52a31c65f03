"""The graph and the state of a run over HTTP, and who may see them."""

from __future__ import annotations

from tests.support.asgi import Browser
from tests.support.command_cases import adder
from tests.web.shop import viewer

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
