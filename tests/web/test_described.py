"""Whatever a client sends, the API answers as its description says: no defect, no status or shape it does not name.

Requests are made of the description by schemathesis: valid ones, ones that break its rules, and, in `make web`, chains
in which what one request answered is used by the next.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.generation.stateful.state_machine import APIStateMachine
from tests.support.serving import TOKEN, served
from tests.web.shop import approve, fail, house, order

from holdfast import Engine
from holdfast.web.openapi import openapi
from holdfast.web.routes import routes

EACH = {GenerationMode.POSITIVE: 3, GenerationMode.NEGATIVE: 2}
"""How many requests are made of each operation in an ordinary run, valid and not: more than 300 in all."""
MANY = 2_500
"""How many requests a chain of chains is made of, at least; `make web` has four on each database."""
RUNS = ("done", "waits", "failed")
_ID = re.compile(r"[A-Za-z0-9._:@=+~-]+")
"""An id that none can have is to be refused, and stays what it is."""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SETTINGS = settings(
    derandomize=True, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


class Api:
    """A server, and the description that requests are made of."""

    def __init__(self, address: str) -> None:
        self.asked = Counter[int]()
        self.wrong: list[str] = []
        self.session = requests.Session()
        self.schema: Any = schemathesis.openapi.from_dict(_described())
        self.schema.config.update(base_url=f"{address}/api/v1")
        self.schema.hook("flatmap_path_parameters")(_of_runs_that_are_there)
        self.schema.hook("map_case")(_without_long_waits)

    def ask(self, case: Any) -> Any:
        return case.call(session=self.session, headers=HEADERS)

    def judge(self, case: Any, answer: Any) -> None:
        """Fail for an answer that is not described, or a defect."""
        self.asked[answer.status_code] += 1
        try:
            assert answer.status_code not in (500, 503), f"{case.as_curl_command()}\n{answer.content!r}"
            checked = [each for each in CHECKS if each is not REFUSED or _is_sent(case, answer)]
            case.validate_response(answer, checks=checked)
        except Exception as error:
            self.wrong.append(str(error))
            raise


REFUSED: Any = checks.negative_data_rejection
CHECKS: Any = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    REFUSED,
    checks.allow_header_conformance,
]


def _is_sent(case: Any, answer: Any) -> bool:
    """Whether all of a query is in the address: a list without values is not, whatever is wrong with it."""
    sent = parse_qs(urlsplit(answer.request.url).query, keep_blank_values=True)
    return all(name in sent for name in case.query or {})


def _described() -> dict[str, Any]:
    described = openapi(routes(), "")
    del described["paths"]["/live"]  # a stream, which tests/web/test_live.py reads
    return described


def _of_runs_that_are_there(context: Any, path_parameters: dict[str, Any] | None) -> Any:
    if not path_parameters or not _ID.fullmatch(str(path_parameters.get("id"))):
        return st.just(path_parameters)
    return st.sampled_from([*RUNS, path_parameters["id"]]).map(lambda run_id: {**path_parameters, "id": run_id})


def _without_long_waits(context: Any, case: Any) -> Any:
    """Wait milliseconds where the API would wait up to a minute for what no one does."""
    path, body = case.operation.path, case.body
    if path == "/runs/{id}/requests" and isinstance(body, dict) and isinstance(body.get("timeout", ""), str):
        body["timeout"] = "PT0.02S"
    if path == "/runs/{id}/result" and isinstance(case.query, dict) and isinstance(case.query.get("wait"), str):
        case.query["wait"] = "PT0.02S"
    if path == "/runs" and isinstance(body, dict) and isinstance(body.get("workflow"), str):
        body["workflow"] = ("order", "approve", "fail")[len(body["workflow"]) % 3]  # otherwise it is none of the house
    return case


@pytest.fixture
def api(tmp_path) -> Iterator[Api]:
    with _opened(f"sqlite:///{tmp_path / 'shop.db'}") as api:
        yield api


class _opened:
    """A server of a house with runs of several kinds."""

    def __init__(self, database: str) -> None:
        self._serving = served(database, lambda address: house(address, durability="process"))
        asyncio.run(_fill(database))

    def __enter__(self) -> Api:
        self.api = Api(self._serving.__enter__())
        return self.api

    def __exit__(self, *exception: Any) -> None:
        self.api.session.close()
        self._serving.__exit__(*exception)


async def _fill(database: str) -> None:
    async with house(database) as engine:
        await (await engine.start(order, "book", id="done")).result()
        await engine.start(approve, id="waits")
        await _failed(engine)


async def _failed(engine: Engine) -> None:
    with pytest.raises(Exception, match="cannot use"):
        await (await engine.start(fail, id="failed")).result()


def test_what_any_client_sends_is_answered_as_it_is_described(api):
    for found, kind in product(api.schema.get_all_operations(), EACH):

        @settings(SETTINGS, max_examples=EACH[kind])
        @given(case=found.ok().as_strategy(generation_mode=kind))
        def ask(case: Any) -> None:
            api.judge(case, api.ask(case))

        try:
            ask()
        except Unsatisfiable:
            assert kind is GenerationMode.NEGATIVE, found.ok().label  # nothing that it takes could be wrong
        except Exception:
            assert api.wrong  # which says nothing of the next operation
    assert "\n\n".join(api.wrong) == ""
    assert api.asked.total() >= 300
    assert {200, 400, 404, 422} <= api.asked.keys()


@pytest.fixture(params=["sqlite", "postgres"])
def store_address(request: pytest.FixtureRequest, tmp_path) -> Any:
    return request.getfixturevalue("database") if request.param == "postgres" else f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.mark.web
@pytest.mark.parametrize("number", range(4))
def test_what_is_done_with_an_answer_is_answered_as_it_is_described(store_address, number):
    """FACES 10, line 18: chains of requests, in which a later one names what an earlier one has made."""
    with _opened(store_address) as api:
        machine = _chains(api)
        while api.asked.total() < MANY:
            seed(number * 10_000 + api.asked.total())(machine)
            try:
                machine.run(settings=settings(SETTINGS, derandomize=False, max_examples=200, stateful_step_count=10))
            except Flaky:
                pass  # the ids in answers are other ones each time, and hypothesis notices; each answer was judged
            assert api.wrong == []


def _chains(api: Api) -> type[APIStateMachine]:
    class Chains(api.schema.as_state_machine()):  # type: ignore[misc]  # made of the description
        def call(self, case: Any, **kwargs: Any) -> Any:
            return api.ask(case)

        def validate_response(self, response: Any, case: Any, **kwargs: Any) -> None:
            api.judge(case, response)

    return Chains
