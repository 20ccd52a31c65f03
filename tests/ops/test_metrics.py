"""Metrics: what is counted, under which labels, and what a missing library says."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.support.paths import ROOT

from holdfast.changes import Change, step_name
from holdfast.errors import BadInput
from holdfast.ops import metrics as module
from holdfast.ops.flow import PausedWork, QueuePlaces, WaitingRuns
from holdfast.ops.metrics import Metrics
from holdfast.testing import TestEngine

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Watched:
    """A Metrics with a registry of its own, told changes in short."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def tell(self, type: str, *, second: float = 0, **rest: Any) -> None:
        at = BEGIN + timedelta(seconds=second)
        self.metrics(Change(type=type, at=at, **{"run_id": "ord-7", "workflow": "order", **rest}))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"holdfast_{name}", labels)

    def of_step(self, name: str, step: str = "charge", **labels: str) -> float | None:
        return self.value(name, workflow="order", step=step, **labels)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_runs_are_counted_by_workflow_and_what_became_of_them(watched: Watched) -> None:
    """S4-26, S1-40, S2-39"""
    for type in ("run.started", "run.started", "run.suspended", "run.completed", "run.failed", "run.blocked"):
        watched.tell(type)
    counted = {
        status: watched.value("runs_total", workflow="order", status=status)
        for status in ("started", "completed", "failed", "blocked", "suspended", "cancelled")
    }
    assert counted == {"started": 2, "completed": 1, "failed": 1, "blocked": 1, "suspended": None, "cancelled": None}


def test_a_step_is_timed_from_the_start_of_its_attempt_to_its_end(watched: Watched) -> None:
    """S4-26, S1-40"""
    watched.tell("step.started", step="charge", attempt=1)
    watched.tell("attempt.failed", step="charge", attempt=1, second=2)
    watched.tell("step.started", step="charge", attempt=2, second=60)
    watched.tell("step.progress", step="charge", attempt=2, second=61)
    watched.tell("step.completed", step="charge", attempt=2, second=63)
    assert watched.of_step("step_seconds_count") == 2
    assert watched.of_step("step_seconds_sum") == 5
    assert watched.of_step("steps_total", outcome="completed") == 1
    assert watched.of_step("attempts_failed_total", reason="failed") == 1


def test_the_last_failed_attempt_counts_like_those_before_it(watched: Watched) -> None:
    """S4-26: the engine tells it as the failure of the step."""
    watched.tell("step.started", step="charge", attempt=1)
    watched.tell("attempt.failed", step="charge", attempt=1)
    watched.tell("step.started", step="charge", attempt=2)
    watched.tell("step.failed", step="charge", attempt=2)
    assert watched.of_step("attempts_failed_total", reason="failed") == 2
    assert watched.of_step("steps_total", outcome="failed") == 1
    assert watched.of_step("step_seconds_count") == 2


def test_a_lost_or_skipped_attempt_has_no_duration(watched: Watched) -> None:
    """S4-26"""
    watched.tell("step.started", step="charge", attempt=1)
    watched.tell("attempt.lost", step="charge", attempt=1, second=900)
    watched.tell("step.failed", step="charge", attempt=1, second=901)
    watched.tell("step.started", step="upload", attempt=1)
    watched.tell("step.skipped", step="upload", second=900)
    assert watched.of_step("step_seconds_count") is None
    assert watched.of_step("attempts_failed_total", reason="lost") == 1
    assert watched.of_step("attempts_failed_total", reason="failed") is None
    assert watched.of_step("steps_total", step="upload", outcome="skipped") == 1


def test_an_end_whose_start_was_told_elsewhere_is_counted_but_not_timed(watched: Watched) -> None:
    """S4-26: a run goes on in another process, or an earlier attempt is the one known here."""
    watched.tell("step.completed", step="charge", attempt=1)
    watched.tell("step.started", step="charge", attempt=1)
    watched.tell("step.completed", step="charge", attempt=2, second=5)
    assert watched.of_step("steps_total", outcome="completed") == 2
    assert watched.of_step("step_seconds_count") is None


def test_a_clock_set_back_takes_nothing_from_the_sum(watched: Watched) -> None:
    """S4-26, GUARANTEES row 9"""
    watched.tell("step.started", step="charge", attempt=1, second=3600)
    watched.tell("step.completed", step="charge", attempt=1, second=0)
    assert watched.of_step("step_seconds_sum") == 0
    assert watched.of_step("step_seconds_count") == 1


@pytest.mark.parametrize("path", ["charge", "charge#2", "orders/~3/charge", "orders/~12/parallel/x/charge#10"])
def test_the_label_of_a_step_is_its_name_without_numbers(watched: Watched, path: str) -> None:
    """S4-26: labels have few values."""
    watched.tell("step.completed", step=path, attempt=1)
    assert step_name(path) == "charge"
    assert watched.of_step("steps_total", outcome="completed") == 1


def test_names_made_up_at_run_time_end_in_one_label(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-26"""
    monkeypatch.setattr(module, "_MAX_STEPS", 3)
    for number in range(10):
        watched.tell("step.completed", step=f"charge-{number}", attempt=1)
    watched.tell("step.completed", step="charge-0", attempt=1)
    assert watched.of_step("steps_total", step="charge-0", outcome="completed") == 2
    assert watched.of_step("steps_total", step="(other)", outcome="completed") == 7


def test_steps_that_never_end_here_do_not_fill_the_memory(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-26: the oldest are forgotten, the newest still timed."""
    monkeypatch.setattr(module, "_MAX_RUNNING", 10)
    for number in range(100):
        watched.tell("step.started", run_id=f"ord-{number}", step="charge", attempt=1)
    assert len(watched.metrics._running) == 10
    watched.tell("step.completed", run_id="ord-0", step="charge", attempt=1, second=1)
    assert watched.of_step("step_seconds_count") is None
    watched.tell("step.completed", run_id="ord-99", step="charge", attempt=1, second=1)
    assert watched.of_step("step_seconds_count") == 1
    assert len(watched.metrics._running) == 9


def test_run_and_attempt_of_a_duration_are_its_exemplar(watched: Watched) -> None:
    """S4-26: they have too many values for labels; an id too long for an exemplar is left out."""
    for run_id in ("ord-7", "x" * 255):
        watched.tell("step.started", run_id=run_id, step="charge", attempt=3)
        watched.tell("step.completed", run_id=run_id, step="charge", attempt=3, second=4 if run_id == "ord-7" else 40)
    families = text_string_to_metric_families(generate_openmetrics(watched.registry).decode())
    exemplars = [sample.exemplar for family in families for sample in family.samples if sample.exemplar]
    assert [(exemplar.labels, exemplar.value) for exemplar in exemplars] == [({"run_id": "ord-7", "attempt": "3"}, 4)]
    assert watched.of_step("step_seconds_count") == 2
    assert "ord-7" not in generate_latest(watched.registry).decode()


def test_compensations_dead_letters_callbacks_and_skew_are_counted(watched: Watched) -> None:
    """S4-24, S4-26, S1-40"""
    for type in ("compensation.started", "compensation.completed", "compensation.failed", "compensation.failed"):
        watched.tell(type, step="undo#0/refund")
    watched.tell("deadletter.added", data={"kind": "event"})
    watched.tell("callback.error", data={"error": "ValueError"})
    watched.tell("run.skewed")
    watched.tell("message.received")
    watched.tell("schedule.skipped")
    watched.tell("something.new")
    assert watched.value("compensations_total", outcome="completed") == 1
    assert watched.value("compensations_total", outcome="failed") == 2
    assert watched.value("compensations_total", outcome="started") is None
    assert watched.value("dead_letters_total", kind="event") == 1
    assert watched.value("callback_errors_total") == 1
    assert watched.value("skewed_runs_total", workflow="order") == 1
    assert watched.value("skipped_ticks_total", workflow="order") == 1


def test_limits_and_lanes_are_gauges(watched: Watched) -> None:
    """S2-39 Of a workflow over all its keys; one of which nothing waits any more is zero."""
    lanes = [WaitingRuns("settle", key, 3, 1, None) for key in "ab"]
    limit = SimpleNamespace(name="bank", used=2, waiting=7, paused=True)
    watched.metrics.observe_flow([limit], lanes)
    figures = [watched.value(f"limit_{what}", limit="bank") for what in ("used", "waiting", "paused")]
    assert figures == [2, 7, 1]
    assert watched.value("lane_waiting", workflow="settle") == 6
    assert watched.value("lane_holding", workflow="settle") == 2
    watched.metrics.observe_flow()
    assert watched.value("lane_waiting", workflow="settle") == 0


def test_pauses_of_workflows_and_queues_are_gauges(watched: Watched) -> None:
    """S2-39 What was resumed is zero."""
    since = datetime(2026, 1, 1, tzinfo=UTC)
    watched.metrics.observe_flow(paused=[PausedWork("workflow", "settle", since), PausedWork("queue", "bank", since)])
    assert watched.value("workflow_paused", workflow="settle") == watched.value("queue_paused", queue="bank") == 1
    watched.metrics.observe_flow(paused=[PausedWork("queue", "bank", since)])
    assert watched.value("workflow_paused", workflow="settle") == 0
    assert watched.value("queue_paused", queue="bank") == 1


def test_the_places_of_queues_are_gauges(watched: Watched) -> None:
    """S2-39 A queue in which nothing is any more is zero; one without a number has no places."""
    watched.metrics.observe_flow(queues=[QueuePlaces("bank", 4, 3, 7), QueuePlaces("post", None, 1, 0)])
    figures = [watched.value(f"queue_{what}", queue="bank") for what in ("places", "used", "waiting")]
    assert figures == [4, 3, 7]
    assert (watched.value("queue_used", queue="post"), watched.value("queue_places", queue="post")) == (1, None)
    watched.metrics.observe_flow(queues=[QueuePlaces("bank", 4, 0, 0)])
    assert (watched.value("queue_used", queue="bank"), watched.value("queue_used", queue="post")) == (0, 0)
    assert watched.value("queue_places", queue="bank") == 4


def test_gauges_show_the_last_figures(watched: Watched) -> None:
    """S2-39, S1-40: a status that is not named any more is zero, and ended runs are no gauge."""
    watched.metrics.observe({"running": 2, "suspended": 5, "completed": 9, "dead_letters": 3, "abandoned_threads": 1})
    watched.metrics.observe({"suspended": 4, "dead_letters": 0, "abandoned_threads": 1})
    assert watched.value("open_runs", status="running") == 0
    assert watched.value("open_runs", status="suspended") == 4
    assert watched.value("open_runs", status="completed") is None
    assert watched.value("suspended") is watched.value("completed") is None
    assert watched.value("open_dead_letters") == 0
    assert watched.value("abandoned_threads") == 1


def test_a_second_set_of_metrics_in_one_registry_is_refused_with_the_way_out(watched: Watched) -> None:
    """S1-40"""
    with pytest.raises(BadInput, match="same Metrics to every engine"):
        Metrics(watched.registry)
    Metrics(watched.registry, namespace="other")
    watched.metrics(Change(type="run.started", at=BEGIN, workflow="order"))
    assert watched.value("runs_total", workflow="order", status="started") == 1


def test_a_figure_whose_name_is_taken_is_refused(watched: Watched) -> None:
    """S1-40"""
    with pytest.raises(BadInput, match="'steps'"):
        watched.metrics.observe({"steps": 1})


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-40"""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r'pip install "holdfast\[metrics\]"'):
        Metrics()


async def test_the_rules_on_the_page_about_alerts_ask_for_metrics_that_exist(watched: Watched) -> None:
    """By name, by label and, where it has few, by the value of the label."""
    page = (ROOT / "docs" / "production" / "alerts.md").read_text()
    rules = page.partition("```yaml\n")[2].partition("```")[0]
    asked = re.findall(r"(holdfast_\w+)(?:\{(\w+)=\"(\w+)\"\})?", rules)
    assert len(asked) >= 9
    for type in ("run.failed", "run.completed", "deadletter.added", "callback.error"):
        watched.tell(type, data={"kind": "work"})
    watched.tell("step.started", step="charge", attempt=1)
    watched.tell("attempt.lost", step="charge", attempt=1)
    watched.tell("step.started", step="charge", attempt=2)
    watched.tell("step.completed", step="charge", attempt=2)
    async with TestEngine() as engine:
        watched.metrics.observe(await engine.stats())
    samples = [sample for family in watched.registry.collect() for sample in family.samples]
    for name, label, value in asked:
        assert any(sample.name == name and (not label or sample.labels.get(label) == value) for sample in samples), name
    for labels in re.findall(r"by \(([\w, ]+)\)", rules):
        assert set(labels.split(", ")) <= {label for sample in samples for label in sample.labels}
