"""Tracing: a span around each attempt, in the body's own context."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from holdfast.ops.tracing import Tracing


class Traced:
    """A Tracing whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)
        self.tracer = self.provider.get_tracer("body")

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_the_span_of_an_attempt_says_which_it_is(traced: Traced) -> None:
    """S4-26, S1-40"""
    with traced.tracing.attempt("ord-7", "order", "orders/~3/charge#2", 2):
        pass
    span = traced.spans()["step charge"]
    assert dict(span.attributes or {}) == {
        "holdfast.run_id": "ord-7",
        "holdfast.workflow": "order",
        "holdfast.step": "orders/~3/charge#2",
        "holdfast.attempt": 2,
    }
    assert span.status.status_code is trace.StatusCode.UNSET
    assert span.end_time is not None


async def test_spans_of_bodies_side_by_side_are_children_of_their_own_attempt(traced: Traced) -> None:
    """S4-26: async bodies in tasks of one loop."""

    async def body(step: str) -> None:
        with traced.tracing.attempt("ord-7", "order", step, 1):
            await asyncio.sleep(0)
            with traced.tracer.start_as_current_span(f"query of {step}"):
                await asyncio.sleep(0)

    await asyncio.gather(*(body(step) for step in ("charge", "ship", "mail")))
    spans = traced.spans()
    assert len(spans) == 6
    for step in ("charge", "ship", "mail"):
        parent = spans[f"query of {step}"].parent
        assert parent is not None
        assert parent.span_id == spans[f"step {step}"].context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_spans_of_a_body_in_a_thread_are_children_of_its_attempt(traced: Traced) -> None:
    """S4-26: the thread runs in a copy of the context of whoever started it."""

    def body() -> None:
        with (
            traced.tracing.attempt("ord-7", "order", "charge", 1),
            traced.tracer.start_as_current_span("query"),
        ):
            pass

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,))
    thread.start()
    thread.join()
    parent = traced.spans()["query"].parent
    assert parent is not None
    assert parent.span_id == traced.spans()["step charge"].context.span_id


def test_whoever_opened_the_engine_is_no_parent_of_its_steps(traced: Traced) -> None:
    """S4-26: a worker's tasks inherit the context they were started in, whatever runs they work on."""
    with traced.tracer.start_as_current_span("request") as request:
        with traced.tracing.attempt("ord-7", "order", "charge", 1):
            pass
        assert trace.get_current_span() is request
    charge = traced.spans()["step charge"]
    assert charge.parent is None
    assert charge.context.trace_id != request.get_span_context().trace_id


@pytest.mark.parametrize("error", [ValueError("no funds"), asyncio.CancelledError("too slow"), StopIteration("end")])
def test_what_a_body_raises_is_recorded_and_goes_on_its_way(traced: Traced, error: BaseException) -> None:
    """S4-26: a cancelled body is an attempt that came to nothing, too."""
    with (
        pytest.raises(type(error)) as caught,
        traced.tracing.attempt("ord-7", "order", "charge", 1),
    ):
        raise error
    assert caught.value is error
    span = traced.spans()["step charge"]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == f"{type(error).__name__}: {error}"
    (event,) = span.events
    assert event.name == "exception"
    assert str(error) in str((event.attributes or {})["exception.message"])


def test_an_error_that_cannot_be_put_into_words_is_still_the_bodys(traced: Traced) -> None:
    """S4-26: tracing changes nothing about the outcome of a step."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(MuteError), traced.tracing.attempt("ord-7", "order", "charge", 1):
        raise MuteError
    assert traced.spans()["step charge"].status.status_code is trace.StatusCode.ERROR


def test_a_sampler_that_wants_nothing_gets_nothing() -> None:
    """S4-26"""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.raises(ValueError, match="x"), Tracing(provider).attempt("ord-7", "order", "charge", 1):
        raise ValueError("x")
    assert exporter.get_finished_spans() == ()


def test_without_a_provider_the_body_runs_all_the_same() -> None:
    """S1-40: the global provider does nothing until somebody sets one."""
    done = []
    with Tracing().attempt("ord-7", "order", "charge", 1):
        done.append(1)
    assert done == [1]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-40"""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r'pip install "holdfast\[otel\]"'):
        Tracing()
