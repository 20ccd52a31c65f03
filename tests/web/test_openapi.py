"""The API says of itself what it takes and answers, and that is true."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.asgi import Browser
from tests.support.json_schema import faults
from tests.web.shop import approve, house, order, viewer

from holdfast.web import dashboard
from holdfast.web.openapi import openapi
from holdfast.web.routes import routes


def test_the_description_is_valid_and_names_every_route():
    from openapi_spec_validator import validate  # which every process that collects tests would load for this one

    described = openapi(routes(), "/workflows")
    validate(described)
    assert described["servers"] == [{"url": "/workflows/api/v1"}]
    named = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in routes()}


def test_instants_have_their_format():
    text = str(openapi(routes(), ""))
    assert "'format': 'date-time'" in text
    assert "'format': 'duration'" in text


def test_every_status_that_a_route_answers_is_described():
    for path, methods in openapi(routes(), "")["paths"].items():
        for method, operation in methods.items():
            assert {"400", "401", "403", "421", "500"} <= operation["responses"].keys(), (method, path)


@pytest.fixture
async def page(address):
    async with house(address) as engine:
        await (await engine.start(order, "book", id="done")).result()
        await engine.start(approve, id="waits")
        yield Browser(dashboard(engine, authenticate=viewer("admin"), rates=None))


async def test_what_is_answered_fits_what_is_described(page):
    text = (await page.get("/api/v1/openapi.json")).body.replace(b"#/components/schemas/", b"#/$defs/")
    described = msgspec.json.decode(text)
    looked = 0
    for path, methods in described["paths"].items():
        if "get" not in methods or path in ("/live", "/runs/{id}/recording", "/audit/export"):
            continue
        for run_id in ("done", "waits", "none"):
            reply = await page.get(f"/api/v1{path.replace('{id}', run_id)}")
            operation = methods["get"]["responses"]
            assert str(reply.status) in operation, (path, reply.status)
            kind = reply.headers["content-type"]
            schema = operation[str(reply.status)]["content"][kind]["schema"]
            assert [*faults(reply.json, schema | {"$defs": described["components"]["schemas"]})] == [], path
            looked += reply.status == 200
    assert looked > 25
