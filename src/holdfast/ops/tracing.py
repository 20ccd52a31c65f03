"""Traces for OpenTelemetry: one span around each attempt of a step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from holdfast.changes import step_name

_logger = logging.getLogger("holdfast.ops")


class Tracing:
    """Makes a span for each attempt of a step, so that spans made in its body are that span's children.

    Replay makes no spans, since it runs no bodies. There is no span for a whole run: a run outlives processes, and a
    span can only be ended by the process that began it. One made up when the run ends could be no parent, because
    the steps' spans were sent long before, and would be missing whenever the process died between committing the end
    and telling of it. For the same reason an attempt's span has no parent: what called `start` may be days and
    processes away, and what opened the engine has nothing to do with the run. Every span carries the run's id to find
    them by.

    Args:
        tracer_provider: where spans go; OpenTelemetry's global provider when left out.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import context, trace
        except ModuleNotFoundError as error:
            raise ImportError('Tracing needs opentelemetry-api; run pip install "holdfast[otel]"') from error
        self._trace: Any = trace
        self._nothing: Any = context.Context()
        self._tracer: Any = trace.get_tracer("holdfast", tracer_provider=tracer_provider)

    @contextmanager
    def attempt(self, run_id: str, workflow: str, step: str, attempt: int) -> Iterator[None]:
        """Span the body of one attempt; enter it where the body runs, in its task or thread.

        An exception is recorded, marks the span as an error and goes on its way; so does the cancelling of a body that
        ran out of time.
        """
        with ExitStack() as stack:
            span = self._begin(stack, run_id, workflow, step, attempt)
            try:
                yield
            # OpenTelemetry's own handling passes over CancelledError; here it means that the attempt came to nothing.
            except BaseException as error:
                # An exception that cannot be put into words must still be the one the engine sees.
                with suppress(Exception):
                    span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
                    span.record_exception(error)
                    span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
                raise

    def _begin(self, stack: ExitStack, run_id: str, workflow: str, step: str, attempt: int) -> Any:
        """Begin a span that the stack ends; a tracer that fails is logged, and no concern of the step's."""
        attributes = {
            "holdfast.run_id": run_id,
            "holdfast.workflow": workflow,
            "holdfast.step": step,
            "holdfast.attempt": attempt,
        }
        try:
            span = self._tracer.start_span(f"step {step_name(step)}", context=self._nothing, attributes=attributes)
            using = self._trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False)
            using.__enter__()
        except Exception:
            _logger.exception("a span could not be begun; the step goes on without")
            return None

        def end() -> None:
            try:
                using.__exit__(None, None, None)
            except Exception:
                _logger.exception("a span could not be ended")

        stack.callback(end)
        return span
