"""What holdfast logs cannot be steered by the text in it."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator

import pytest
from tests.support.paths import ROOT

from holdfast.logs import OF_USERS, OWN, Lines

HOSTILE = "oops\n2026-01-01 ERROR forged line\r\x1b[2J\x1b]0;title\x07\u202egnp.exe"


class Hostile(Exception):
    """Says what it likes."""

    def __str__(self) -> str:
        return HOSTILE


class Mute:
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


MADE_QUIETER = ("psycopg",)
"""Loggers of others, to which nothing is written here."""


@pytest.fixture(params=OWN)
def logger(request: pytest.FixtureRequest) -> logging.Logger:
    return logging.getLogger(request.param)


@pytest.fixture
def written(logger: logging.Logger) -> Iterator[io.StringIO]:
    """Give what a plain handler writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("LOG %(message)s"))
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def lines(written: io.StringIO) -> list[str]:
    said = written.getvalue()
    assert said.replace("\n", "").isprintable()
    return said.split("\n")


def test_text_that_a_line_was_given_stays_in_that_line(logger, written):
    logger.error("run %s: %s of %r", "a\nb", Hostile(), HOSTILE)
    (line, rest) = lines(written)
    assert rest == ""
    assert line.startswith("LOG run a\\nb: oops\\n2026-01-01 ERROR forged line\\r\\x1b[2J")


def test_what_an_exception_says_cannot_be_taken_for_another_line(logger, written):
    try:
        raise Hostile
    except Hostile:
        logger.exception("it failed")
    first, *others = lines(written)
    assert first == "LOG it failed"
    assert all(line.startswith(("    ", "Traceback ")) for line in others if line)
    assert any("forged line" in line for line in others), "what it says is shown"


def test_lines_that_are_meant_to_be_lines_are_indented(logger, written):
    logger.warning("failed:%s", Lines(f"\nTraceback\n{HOSTILE}"))
    first, *others = lines(written)
    assert first == "LOG failed:"
    assert len(others) == 4
    assert all(line.startswith("    ") for line in others if line)


def test_numbers_and_names_stay_what_they_are(logger, written):
    logger.warning("%d of %.1f, %s", 7, 1.25, "J\u00fcrgen")
    logger.warning("%(name)s", {"name": "a\nb"})
    logger.warning("%s", Mute())
    assert lines(written)[:3] == ["LOG 7 of 1.2, J\u00fcrgen", "LOG a\\nb", "LOG <unprintable Mute>"]


def test_every_logger_is_one_of_those_that_are_known():
    """A logger of another name would log what it is given as it is."""
    found = set()
    for path in (ROOT / "src" / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                assert all(isinstance(each, ast.Constant) for each in node.args) or path.name == "logs.py", path
                found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    assert found <= {*OWN, *OF_USERS, *MADE_QUIETER}
