"""Metrics, traces and logs of an engine: what happened once is counted once, and nothing of it changes a run."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from tests.support.paths import SCRIPTS

from holdfast import Change, Context, Retry, RunCancelled, RunFailed, activity, step_context, workflow
from holdfast.errors import BadInput
from holdfast.ops.metrics import Metrics
from holdfast.ops.tracing import Tracing

HOUR = timedelta(hours=1)
SCRIPT = SCRIPTS / "observed_worker.py"

anywhere = pytest.mark.parametrize("mode", ["memory"])


class Observed:
    """Metrics and traces that stay in memory."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("mine")

    @property
    def options(self) -> dict[str, Any]:
        return {"on_change": self.metrics, "tracing": Tracing(self.provider)}

    def counted(self, name: str) -> dict[str, float]:
        """Return the samples of a metric by the values of their labels."""
        return {
            " ".join(sample.labels.values()): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"holdfast_{name}" and sample.value
        }

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]


@pytest.fixture
def observed() -> Observed:
    return Observed()


@activity(retry=Retry(max_attempts=3, initial_interval=HOUR))
async def flaky() -> int:
    step_context().log.info("trying")
    if step_context().attempt < 3:
        raise OSError("not yet")
    return 3


@workflow
async def order(ctx: Context) -> int:
    ctx.log.info("begun")
    await ctx.sleep(HOUR)
    return await ctx.step(flaky)


@workflow
async def ask(ctx: Context) -> Any:
    return await ctx.receive("word")


# Metrics.


async def test_an_engine_s_metrics_count_runs_steps_and_attempts(make_engine, observed):
    """S1-40 S4-26 However often a run is replayed between its sleeps and retries."""

    @workflow
    async def broken(ctx: Context) -> None:
        await ctx.step(hopeless)

    @activity(retry=Retry.never)
    async def hopeless() -> None:
        raise ValueError("no")

    engine = await make_engine(order, broken, ask, **observed.options)
    assert await engine.execute(order) == 3
    with pytest.raises(RunFailed):
        await engine.execute(broken)
    waiting = await engine.start(ask)
    stopped = await engine.start(ask)
    await engine.settle()
    await stopped.cancel()
    with pytest.raises(RunCancelled):
        await stopped.result()
    assert observed.counted("runs_total") == {
        "order started": 1,
        "order completed": 1,
        "broken started": 1,
        "broken failed": 1,
        "ask started": 2,
        "ask cancelled": 1,
    }
    assert observed.counted("steps_total") == {"order flaky completed": 1, "broken hopeless failed": 1}
    assert observed.counted("attempts_failed_total") == {"order flaky failed": 2, "broken hopeless failed": 1}
    assert observed.counted("step_seconds_count") == {"order flaky": 3, "broken hopeless": 1}
    assert observed.counted("dead_letters_total") == {"work": 1}
    observed.metrics.observe(await engine.stats())
    assert observed.counted("open_runs") == {"suspended": 1}
    assert observed.counted("open_dead_letters") == {"": 1}
    await waiting.cancel()


async def test_a_duration_says_which_run_and_attempt_it_was(make_engine, observed):
    """S4-26 Run and attempt are no labels, of which there would be too many, but exemplars."""
    engine = await make_engine(order, **observed.options)
    await engine.execute(order, id="ord-7")
    page = generate_latest(observed.registry).decode()
    assert 'run_id="ord-7"' in page
    assert 'attempt="3"' in page


def test_after_a_kill_nothing_is_counted_or_traced_a_second_time(tmp_path):
    """S1-40 S4-26 G3 The process dies in the third step; the next one replays the first two without a word."""
    reports = []
    for life in ("die", ""):
        report = tmp_path / f"report{life}"
        command = [sys.executable, str(SCRIPT), str(tmp_path / "order.db"), str(report), *([life] if life else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if life else 0), done.stderr
        reports.append(json.loads(report.read_text()))
    assert reports[0] == {
        "samples": {
            "holdfast_runs_total order started": 1,
            "holdfast_steps_total order first completed": 1,
            "holdfast_steps_total order second completed": 1,
            "holdfast_step_seconds_count order first": 1,
            "holdfast_step_seconds_count order second": 1,
        },
        "spans": ["step first 1", "step second 1"],
    }
    assert reports[1] == {
        "samples": {
            "holdfast_runs_total order completed": 1,
            "holdfast_steps_total order third completed": 1,
            "holdfast_attempts_failed_total order third lost": 1,
            "holdfast_step_seconds_count order third": 1,
        },
        "spans": ["step third 2"],
    }


async def test_a_run_cancelled_before_it_began_is_told_too(make_engine, observed):
    """S1-40 S0-46 Nobody ever ran it; whoever counts must not wait for it for ever."""
    told: list[str] = []
    engine = await make_engine(ask, on_change=[observed.metrics, lambda change: told.append(change.type)])
    run = await engine.start(ask, delay=HOUR)
    await run.cancel()
    await engine.settle()
    assert told.count("run.cancelled") == 1
    assert observed.counted("runs_total")["ask cancelled"] == 1


async def test_what_people_do_is_counted_once_and_by_its_workflow(make_engine, observed):
    """S1-40 S0-46 Terminated, retried, cancelled while paused, before it began, or with its engine at work on it."""
    tries: list[int] = []

    @activity(retry=Retry.never)
    async def second_time_lucky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")

    @workflow
    async def shop(ctx: Context) -> None:
        await ctx.step(second_time_lucky)

    engine = await make_engine(shop, ask, on_change=observed.metrics)
    run = await engine.start(shop)
    with pytest.raises(RunFailed):
        await run.result()
    await run.retry(by="kim")
    await run.result()
    terminated, paused, waiting = [await engine.start(ask) for _ in range(3)]
    never = await engine.start(ask, delay=HOUR)
    await engine.settle()
    await paused.pause()
    await engine.settle()
    await terminated.terminate()
    for each in (paused, waiting, never):
        assert await each.cancel()
    await engine.settle()
    assert observed.counted("runs_total") == {
        "shop started": 1,
        "shop failed": 1,
        "shop reopened": 1,
        "shop completed": 1,
        "ask started": 3,
        "ask cancelled": 4,
    }


# Callbacks.


async def test_a_callback_that_raises_changes_nothing_and_is_told_to_the_others(make_engine, observed, caplog):
    """B19 S0-46 S1-40 The run ends as it would; the failures are counted and logged."""

    def broken(change: Change) -> None:
        raise RuntimeError(f"cannot take {change.type}")

    told: list[Change] = []
    engine = await make_engine(order, on_change=[broken, observed.metrics, told.append])
    assert await engine.execute(order, id="r") == 3
    await engine.settle()
    types = [change.type for change in told]
    assert types.count("run.completed") == types.count("step.completed") == 1
    failures = [change for change in told if change.type == "callback.error"]
    assert len(failures) == len(types) - len(failures)
    assert failures[0].run_id == "r"
    assert failures[0].data["change"] == "run.started"
    assert "cannot take run.started" in failures[0].data["error"]
    assert observed.counted("callback_errors_total") == {"": len(failures)}
    assert any("nothing is changed by that" in record.getMessage() for record in caplog.records)


@anywhere
@pytest.mark.parametrize("callback", [None, 7, "print"])
async def test_a_callback_that_cannot_be_called_is_refused(make_engine, callback):
    """GUARANTEES 6.14 When the engine is made, and when it is added later; so is one that would have to be awaited."""

    async def awaited(change: Change) -> None: ...

    for wrong in (callback, awaited):
        with pytest.raises(BadInput, match="on_change"):
            await make_engine(ask, on_change=[wrong])
    engine = await make_engine(ask)
    with pytest.raises(BadInput, match="callback"):
        engine.subscribe(awaited)


async def test_what_was_unsubscribed_is_told_nothing_more(make_engine):
    """S0-46 Also from within the callback."""
    told: list[str] = []
    engine = await make_engine(order, ask)
    stops: list[Callable[[], None]] = []

    def once(change: Change) -> None:
        told.append(change.type)
        stops[0]()

    stops.append(engine.subscribe(once))
    await engine.execute(order)
    assert told == ["run.started"]
    stops[0]()


# Traces.


async def test_spans_of_a_body_are_children_of_its_attempt_and_none_is_made_on_replay(make_engine, observed):
    """S1-40 S4-26 Async, in a thread, side by side; a run that is replayed at every step."""

    async def fetch(what: str) -> str:
        with observed.tracer.start_as_current_span(f"query {what}"):
            await asyncio.sleep(0)
        return what

    def store(what: str) -> str:
        with observed.tracer.start_as_current_span(f"query {what}"):
            return what

    @workflow
    async def report(ctx: Context) -> None:
        await asyncio.gather(ctx.step("left", fetch, "left"), ctx.step("right", fetch, "right"))
        await ctx.sleep(HOUR)
        await ctx.step("kept", store, "kept")
        await ctx.sleep(HOUR)

    engine = await make_engine(report, **observed.options)
    with observed.tracer.start_as_current_span("request"):
        run = await engine.start(report, id="r")
    await run.result()
    outer = {span.context.span_id: span for span in observed.spans("step ")}
    assert sorted(span.name for span in outer.values()) == ["step kept", "step left", "step right"]
    for span in observed.spans("query "):
        assert outer[span.parent.span_id].name == span.name.replace("query", "step")
    assert len(observed.spans("query ")) == 3
    assert {span.parent for span in outer.values()} == {None}
    assert {span.attributes["holdfast.run_id"] for span in outer.values()} == {"r"}


async def test_each_attempt_has_a_span_with_its_number_and_its_error(make_engine, observed):
    """S4-26 workflowId, stepName and attempt; one that is cut off by its time is an error too."""

    @activity(retry=Retry.never, timeout=timedelta(milliseconds=5))
    async def endless() -> None:
        await asyncio.sleep(60)

    @workflow
    async def both(ctx: Context) -> None:
        await ctx.step(flaky)
        await ctx.step(endless)

    engine = await make_engine(both, **observed.options)
    with pytest.raises(RunFailed):
        await engine.execute(both, id="r")
    spans = observed.spans("step flaky")
    assert [dict(span.attributes) for span in spans] == [
        {"holdfast.run_id": "r", "holdfast.workflow": "both", "holdfast.step": "flaky", "holdfast.attempt": attempt}
        for attempt in (1, 2, 3)
    ]
    error, unset = trace.StatusCode.ERROR, trace.StatusCode.UNSET
    assert [span.status.status_code for span in spans] == [error, error, unset]
    assert spans[0].status.description == "OSError: not yet"
    await asyncio.sleep(0)
    assert [span.status.status_code for span in observed.spans("step endless")] == [error]


async def test_the_span_of_a_step_given_as_a_lambda_covers_the_coroutine_it_returns(make_engine, observed):
    """S4-26 A plain function that returns a coroutine is a body like any other."""

    async def pay() -> None:
        with observed.tracer.start_as_current_span("query"):
            await asyncio.sleep(0)
        raise ValueError("no")

    @workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("pay", activity(retry=Retry.never)(lambda: pay()))

    engine = await make_engine(shop, **observed.options)
    with pytest.raises(RunFailed):
        await engine.execute(shop)
    (outer,) = observed.spans("step ")
    (inner,) = observed.spans("query")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert outer.status.status_code is trace.StatusCode.ERROR


async def test_a_compensation_is_traced_like_any_step(make_engine, observed):
    """S4-26 G11 And counted by its outcome."""

    async def charge() -> None: ...

    async def refund() -> None: ...

    @workflow
    async def shop(ctx: Context) -> None:
        await ctx.step(charge)
        ctx.compensate(refund)
        raise ValueError("no")

    engine = await make_engine(shop, **observed.options)
    with pytest.raises(RunFailed):
        await engine.execute(shop)
    assert [span.name for span in observed.spans()] == ["step charge", "step refund"]
    assert observed.counted("compensations_total") == {"completed": 1}


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
async def test_a_tracer_that_fails_changes_no_run(make_engine, moment):
    """S1-40 B19 G3 What watches must not decide: before the body, or after it has done its work."""
    ran: list[int] = []

    async def body() -> str:
        ran.append(1)
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(body)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no room for spans")

    provider = TracerProvider()
    processor = SimpleSpanProcessor(InMemorySpanExporter())
    setattr(processor, moment, broken)
    provider.add_span_processor(processor)
    engine = await make_engine(work, tracing=Tracing(provider))
    assert await engine.execute(work) == "done"
    assert ran == [1]


# Logs.


async def test_logs_metrics_and_traces_of_a_run_name_the_same_things(make_engine, observed, caplog):
    """S1-40 S4-26 workflowId, stepName and attempt in each of the three, and each once."""
    caplog.set_level(logging.INFO, "holdfast")
    engine = await make_engine(order, **observed.options)
    await engine.execute(order, id="r")
    lines = [record for record in caplog.records if record.name == "holdfast.step"]
    logged = [(line.run_id, line.step, line.attempt) for line in lines]
    traced = [
        tuple(span.attributes[f"holdfast.{name}"] for name in ("run_id", "step", "attempt"))
        for span in observed.spans()
    ]
    assert logged == traced == [("r", "flaky", attempt) for attempt in (1, 2, 3)]
    assert observed.counted("step_seconds_count") == {"order flaky": 3}
    begun = [record for record in caplog.records if record.name == "holdfast.workflow"]
    assert [(record.getMessage(), record.run_id, record.workflow) for record in begun] == [("[r] begun", "r", "order")]
