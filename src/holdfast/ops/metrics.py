"""Metrics for Prometheus, counted from the changes that an engine reports to its observers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from threading import Lock
from typing import Any, Protocol

from holdfast.changes import Change, step_name
from holdfast.contract.rows import TERMINAL, Status
from holdfast.errors import BadInput

_COUNTED = ("started", "completed", "failed", "cancelled", "blocked", "reopened")
_GAUGES = {"dead_letters": "open_dead_letters"}
_OUTCOMES = ("completed", "failed", "skipped")
_MAX_RUNNING = 10_000
_MAX_STEPS = 1_000
_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_STATUSES = frozenset(Status)


class LimitFigures(Protocol):
    """A limit, as `engine.limits()` gives it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def used(self) -> int:
        """How many places are taken."""

    @property
    def waiting(self) -> int:
        """How many steps wait."""

    @property
    def paused(self) -> bool:
        """Whether nothing begins."""


class PauseFigures(Protocol):
    """A workflow or a queue that is paused, as `engine.flow.paused()` gives them."""

    @property
    def kind(self) -> str:
        """Which of both."""

    @property
    def name(self) -> str:
        """Which one."""


class QueueFigures(Protocol):
    """A queue, as `engine.flow.queues()` gives them."""

    @property
    def queue(self) -> str:
        """What it is called."""

    @property
    def places(self) -> int | None:
        """How many attempts may run at once."""

    @property
    def used(self) -> int:
        """How many attempts workers have."""

    @property
    def waiting(self) -> int:
        """How many wait."""


class LaneFigures(Protocol):
    """Runs of a workflow under one key, as `engine.flow.waiting()` gives them."""

    @property
    def workflow(self) -> str:
        """Which workflow."""

    @property
    def waiting(self) -> int:
        """How many wait."""

    @property
    def holding(self) -> int:
        """How many hold a place."""


class Metrics:
    """Counts what happens, in a registry of prometheus-client.

        metrics = Metrics()
        engine = Engine(..., on_change=[metrics])

    Labels have few values: a step is counted by its name, whichever branch, iteration or repetition it was made in. Run
    and attempt of a duration are its exemplar, which only the OpenMetrics format shows. Counters start at zero with
    each process, as Prometheus expects.

    Args:
        registry: where the metrics are registered; prometheus-client's own when left out.
        namespace: what their names begin with.

    Raises:
        ImportError: prometheus-client is not installed.
        BadInput: the registry has metrics of these names, or the namespace is no name.
    """

    def __init__(self, registry: Any = None, namespace: str = "holdfast") -> None:
        try:
            import prometheus_client as client
        except ModuleNotFoundError as error:
            raise ImportError('Metrics needs prometheus-client; run pip install "holdfast[metrics]"') from error
        self._client: Any = client
        self._registered = {"registry": client.REGISTRY if registry is None else registry, "namespace": namespace}
        self._register()
        self._gauges: dict[str, Any] = {}
        self._running: dict[tuple[str, str], tuple[int, datetime]] = {}
        self._steps: set[tuple[str, str]] = set()
        self._lanes: set[str] = set()
        """Workflows whose runs waited when they were last counted."""
        self._paused: set[tuple[str, str]] = set()
        """What was ever seen paused: its kind and name."""
        self._queues: set[str] = set()
        """Queues that ever had attempts."""
        # One Metrics may watch several engines, each on its own thread.
        self._lock = Lock()

    def _register(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Any:
            return self._new("Counter", name, text, labels)

        self._runs = counter("runs", "Runs that came to a status.", "workflow", "status")
        self._ended = counter("steps", "Steps that ended or were put off, by outcome.", "workflow", "step", "outcome")
        self._attempts = counter(
            "attempts_failed", "Attempts that raised, or were lost with their worker.", "workflow", "step", "reason"
        )
        self._compensations = counter("compensations", "Compensations that ended, by outcome.", "outcome")
        self._letters = counter("dead_letters", "Dead letters added, by kind.", "kind")
        self._callback_errors = counter("callback_errors", "Callbacks that raised.")
        text = "Ticks of schedules that started nothing, since the workflow had as many runs as it may."
        self._skipped_ticks = counter("skipped_ticks", text, "workflow")
        self._skewed = counter("skewed_runs", "Runs met under another version than they began with.", "workflow")
        text = "How long attempts took that returned or raised."
        self._seconds = self._new("Histogram", "step_seconds", text, ("workflow", "step"), buckets=_BUCKETS)
        self._open = self._new("Gauge", "open_runs", "Runs that have not ended, by status.", ("status",))

    def _new(self, kind: str, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
        try:
            return getattr(self._client, kind)(name, text, labels, **self._registered, **options)
        except ValueError as error:
            raise BadInput(
                f"cannot register the metric {name!r}: {error}; give the same Metrics to every engine of this process, "
                "or another registry= or namespace= to one of them"
            ) from error

    def __call__(self, change: Change) -> None:
        """Count one change."""
        subject, _, what = change.type.partition(".")
        if subject == "run":
            if what in _COUNTED:
                self._runs.labels(change.workflow, what).inc()
            elif what == "skewed":
                self._skewed.labels(change.workflow).inc()
        elif subject in ("step", "attempt"):
            self._count_step(change, subject, what)
        elif subject == "compensation" and what in _OUTCOMES:
            self._compensations.labels(what).inc()
        elif change.type == "deadletter.added":
            self._letters.labels(str(change.data.get("kind", ""))).inc()
        elif change.type == "callback.error":
            self._callback_errors.inc()
        elif change.type == "schedule.skipped":
            self._skipped_ticks.labels(change.workflow).inc()

    def observe(self, stats: Mapping[str, int]) -> None:
        """Set the gauges from what an engine counts.

        The number under the name of an open status goes to `open_runs`, where a status that is not named is zero; ended
        runs are counted by `runs_total`. Every other name is a gauge of its own, such as `abandoned_threads`; that of
        `dead_letters` is `open_dead_letters`, since a counter has that name.
        """
        for status in _STATUSES - TERMINAL:
            self._open.labels(status.value).set(stats.get(status, 0))
        for name, number in stats.items():
            if name not in _STATUSES:
                self._gauge(name).set(number)

    def observe_flow(
        self,
        limits: Iterable[LimitFigures] = (),
        waiting: Iterable[LaneFigures] = (),
        paused: Iterable[PauseFigures] = (),
        queues: Iterable[QueueFigures] = (),
    ) -> None:
        """Set the gauges of flow control: from `engine.limits()`, and `waiting`, `paused`, `queues` of `engine.flow`.

        Of limits `limit_used`, `limit_waiting` and `limit_paused`; of workflows, over their keys, `lane_waiting` and
        `lane_holding`; of workflows and queues `workflow_paused` and `queue_paused`, 0 again when they are resumed; of
        queues `queue_used`, `queue_waiting` and, where a number is declared, `queue_places`.
        """
        for limit in limits:
            for what, number in (("used", limit.used), ("waiting", limit.waiting), ("paused", int(limit.paused))):
                self._flow(f"limit_{what}", "limit").labels(limit.name).set(number)
        lanes: dict[str, list[int]] = {workflow: [0, 0] for workflow in self._lanes}
        for lane in waiting:
            counted = lanes.setdefault(lane.workflow, [0, 0])
            counted[0] += lane.waiting
            counted[1] += lane.holding
        self._lanes.update(lanes)
        for workflow, (waits, holds) in lanes.items():
            self._flow("lane_waiting", "workflow").labels(workflow).set(waits)
            self._flow("lane_holding", "workflow").labels(workflow).set(holds)
        self._observe_queues(queues)
        now = {(each.kind, each.name) for each in paused}
        self._paused |= now
        for kind, name in self._paused:
            self._flow(f"{kind}_paused", kind).labels(name).set(int((kind, name) in now))

    def _observe_queues(self, queues: Iterable[QueueFigures]) -> None:
        figures = dict.fromkeys(self._queues, (0, 0))
        for each in queues:
            figures[each.queue] = (each.used, each.waiting)
            if each.places is not None:
                self._flow("queue_places", "queue").labels(each.queue).set(each.places)
        self._queues.update(figures)
        for queue, (used, waiting) in figures.items():
            self._flow("queue_used", "queue").labels(queue).set(used)
            self._flow("queue_waiting", "queue").labels(queue).set(waiting)

    def _flow(self, name: str, label: str) -> Any:
        with self._lock:
            if name not in self._gauges:
                text = f"{name.replace('_', ' ').capitalize()}, on all workers together."
                self._gauges[name] = self._new("Gauge", name, text, (label,))
            return self._gauges[name]

    def _gauge(self, name: str) -> Any:
        with self._lock:
            if name not in self._gauges:
                text = f"{name.replace('_', ' ').capitalize()}, as the engine counts them."
                self._gauges[name] = self._new("Gauge", _GAUGES.get(name, name), text)
            return self._gauges[name]

    def _count_step(self, change: Change, subject: str, what: str) -> None:
        if change.type == "step.started":
            self._begin(change)
            return
        if change.type == "step.progress":
            return
        labels = (change.workflow, self._label(change.workflow, step_name(change.step)))
        started = self._end(change)
        if started is not None and what in ("completed", "failed"):
            # A clock that was set back must not take from the sum.
            seconds = max(0.0, (change.at - started).total_seconds())
            self._seconds.labels(*labels).observe(seconds, _exemplar(change))
        # The last attempt is told as the failure of its step, unless it was lost: then it did not end here.
        if subject == "attempt" or (what == "failed" and started is not None):
            self._attempts.labels(*labels, what).inc()
        if subject == "step" and what in _OUTCOMES:
            self._ended.labels(*labels, what).inc()

    def _begin(self, change: Change) -> None:
        with self._lock:
            # An attempt that went on in another process never ends here: the oldest make room.
            while len(self._running) >= _MAX_RUNNING:
                del self._running[next(iter(self._running))]
            self._running[change.run_id, change.step] = (change.attempt, change.at)

    def _end(self, change: Change) -> datetime | None:
        """Return when the attempt that ended was started here, if it was; a change may not say which attempt it is."""
        with self._lock:
            attempt, at = self._running.get((change.run_id, change.step), (None, None))
            if at is None or change.attempt not in (0, attempt):
                return None
            del self._running[change.run_id, change.step]
            return at

    def _label(self, workflow: str, step: str) -> str:
        """Return a step's label; names made up at run time must not fill the memory of Prometheus."""
        with self._lock:
            if (workflow, step) not in self._steps:
                if len(self._steps) >= _MAX_STEPS:
                    return "(other)"
                self._steps.add((workflow, step))
            return step


def _exemplar(change: Change) -> dict[str, str] | None:
    exemplar = {"run_id": change.run_id, "attempt": str(change.attempt)}
    # OpenMetrics allows 128 characters in all.
    return exemplar if sum(map(len, [*exemplar, *exemplar.values()])) <= 128 else None
