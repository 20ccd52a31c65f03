"""Log records as lines of JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast import Context, Retry, RunFailed, activity, step_context, workflow
from holdfast.ops.json_logs import JsonFormatter
from holdfast.testing import TestEngine


@activity(retry=Retry.never)
async def charge() -> None:
    step_context().log.info("charging %d cents", 500)
    raise OSError("the bank is closed\nforged line")


@workflow
async def order(ctx: Context) -> None:
    ctx.log.info("begun")
    await ctx.step(charge)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines():
    handler, logger = Lines(), logging.getLogger("holdfast")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.setLevel(before)
    logger.removeHandler(handler)


async def test_each_record_is_one_line_with_its_run_and_step(lines: list[str]) -> None:
    async with TestEngine(workflows=[order]) as engine:
        with pytest.raises(RunFailed):
            await engine.execute(order, id="order-7")
    assert not any("\n" in line for line in lines)
    said = [json.loads(line) for line in lines]
    [begun] = [each for each in said if each["logger"] == "holdfast.workflow"]
    assert (begun["message"], begun["run_id"], begun["level"]) == ("[order-7] begun", "order-7", "INFO")
    [charging] = [each for each in said if each["logger"] == "holdfast.step"]
    assert (charging["run_id"], charging["step"], charging["attempt"]) == ("order-7", "charge", 1)
    assert charging["message"] == "charging 500 cents"
    assert charging["time"].endswith("+00:00")


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize("value", [Hostile(), ITSELF, {(1, 2): 3}, "\ud800", float("nan"), {1, 2}, b"\xff"])
def test_no_value_keeps_a_record_from_its_line(value: Any) -> None:
    record = logging.makeLogRecord({"msg": "seen", "levelname": "INFO", "name": "a", "value": value, "level": "own"})
    said = json.loads(JsonFormatter().format(record))
    assert (said["message"], said["level"]) == ("seen", "INFO")
    assert "value" in said


def test_an_exception_is_part_of_its_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": (type(error), error, error.__traceback__)})
    said = json.loads(JsonFormatter().format(record))
    assert said["exception"].endswith("ValueError: wrong")
