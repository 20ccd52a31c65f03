"""Errors for people: what was raised, and the lines of code that it came through."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.looking.about.frames import FRAME
from holdfast.looking.views import RunView, StepView

_OURS = re.compile(r"[/\\]holdfast[/\\](?:bodies|context|definitions|engine|payloads|replay)[/\\]")
_MOST_STEPS, _MOST_FRAMES, _LAST_LINES = 3, 8, 6


def shown_errors(view: RunView) -> Iterator[tuple[str, list[str]]]:
    """Yield what is to be said of the errors of a run, each with places in code, innermost first."""
    failed = view.head.failed_step
    for step in [step for step in view.steps if step.traceback and _matters(step, failed)][-_MOST_STEPS:]:
        assert step.error is not None
        said = f"{step.error.type.rpartition('.')[2]}: {step.error.message}"
        yield f"{said} (step {step.path}, attempt {step.attempts})", places(step.traceback)
        if step.path == failed and view.error is not None:
            yield "", places(str(view.error.get("traceback") or ""), otherwise=False)
            return
    if view.error is not None:
        said = f"{view.error.get('type')}: {view.error.get('message')}"
        yield said, places(str(view.error.get("traceback") or "").rstrip().removesuffix(said).rstrip())


def _matters(step: StepView, failed: str | None) -> bool:
    """Whether the error of a step is what its run waits for or ended with."""
    return step.path == failed if failed else step.status in ("waiting", "failed", "pending", "running")


def places(traceback: str, *, otherwise: bool = True) -> list[str]:
    """Return where an error came through, innermost first, without the lines of holdfast; or else its last lines.

    Nothing is left of an error that came through holdfast alone.
    """
    lines = traceback.split("\n")
    found: list[str] = []
    for number, line in enumerate(lines):
        frame = FRAME.match(line)
        otherwise = otherwise and frame is None
        if frame is not None and not _OURS.search(frame["file"]):
            text = lines[number + 1].strip() if number + 1 < len(lines) else ""
            found.append(f"{frame['file']}:{frame['line']} in {frame['name'] or '?'}   {text}")
    if found or not otherwise:
        return found[::-1][:_MOST_FRAMES]
    return [line for line in lines[-_LAST_LINES:] if line.strip()]
