"""Acting on many runs: the dry run, the confirmation, and the progress."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from holdfast.cli.database import acting
from holdfast.cli.endings import IN_PART, NOTHING_CHANGED
from holdfast.cli.output import emit, say_wrapped
from holdfast.cli.progress import ProgressLine
from holdfast.errors import BadInput
from holdfast.looking.views import BulkProgress, SelectionView

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.acting.causes import LetterPlan
    from holdfast.looking.acts import Options

_INTERRUPTED = 130
PAST = {
    "cancel": "cancelled", "pause": "paused", "resume": "resumed", "retry": "retried", "rerun": "run again",
    "terminate": "terminated", "recover": "recovered", "nudge": "nudged", "attributes": "changed",
    "replay": "replayed", "acknowledge": "acknowledged", "remove": "removed",
}  # fmt: skip
"""What has been done to a run, or a dead letter, by the act."""
_DOING = {
    "cancel": "cancelling", "pause": "pausing", "resume": "resuming", "retry": "retrying", "rerun": "running again",
    "terminate": "terminating", "recover": "recovering", "nudge": "nudging", "attributes": "changing",
    "replay": "replaying", "acknowledge": "acknowledging", "remove": "removing",
}  # fmt: skip
_MEANS = {
    "cancel": "Their code is told to stop, and may clean up.",
    "pause": "They begin no step until they are resumed; what is under way finishes.",
    "resume": "Paused ones go on where they are, cancelled ones at the first step that is not completed.",
    "retry": "They go on from the step that failed; finished steps do not run again.",
    "rerun": "Their steps run again from the one that is named, or all of them.",
    "terminate": "They end here and now: their code is not told, and nothing is undone.",
    "recover": "They are tried again with the code that workers have now.",
    "nudge": "Steps that wait to be tried again are tried now.",
    "attributes": "They are found by the attributes that are named; others that they have stay.",
    "replay": "Their runs go on from the steps that failed, events are delivered again; what is done keeps its keys.",
    "acknowledge": "It is noted that they were seen.",
    "remove": "They are forgotten; their runs stay as they are.",
}


def act_on_many(action: str, ids: list[str], options: Options, given: dict[str, Any]) -> int:
    """Act on runs that are named, or that fit a filter, once it is confirmed how many they are."""
    plan = acting(given["url"], lambda desk: desk.select(action, given["where"] or "", ids=ids))
    if options.dry_run and given["as_json"]:
        emit("holdfast.selection/1", plan)
        return 0
    return carry_out(plan, lambda desk: desk.bulk(plan.selection, options), given)


Plan: TypeAlias = "SelectionView | LetterPlan"


def carry_out(
    plan: Plan, begin: Callable[[Desk], AsyncGenerator[BulkProgress, None]], given: dict[str, Any], what: str = "run"
) -> int:
    """Say what an act on many would come to, ask, do it and tell how it goes."""
    say_wrapped(_planned(plan, what), err=given["as_json"])
    if plan.can and not given["yes"]:
        say_wrapped(_MEANS[plan.action], err=given["as_json"])
    if given["dry_run"] or not plan.can:
        return 0 if plan.can else NOTHING_CHANGED
    _confirm(plan, given, what)
    return _do(plan, begin, given)


def _planned(plan: Plan, what: str) -> str:
    cannot = sum(plan.cannot.values())
    why = ", ".join(f"{count:,} {status}" if len(plan.cannot) > 1 else status for status, count in plan.cannot.items())
    more = "" if plan.exact else "+"
    one = plan.matched == 1 and plan.exact
    runs = f"{plan.matched:,}{more} {what}{' matches' if one else 's match'}"
    return f"{runs}: {plan.can:,}{more} can be {PAST[plan.action]}{f', {cannot:,} cannot ({why})' if cannot else ''}."


def _confirm(plan: Plan, given: dict[str, Any], what: str) -> None:
    count = plan.can
    if given["yes"]:
        if not plan.exact:
            raise BadInput(f"more than {plan.matched:,} {what}s match: narrow the filter, for example with created:")
        if given["expect"] != count and (count > 1 or given["expect"] is not None):
            raise BadInput(
                f"this acts on {count:,} {what}s: look at them with --dry-run, then say --yes --expect {count}"
            )
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"there is no terminal to ask at: look with --dry-run, then say --yes --expect {count}")
    runs = f"{count:,}{'' if plan.exact else '+'} {what}{'' if count == 1 else 's'}"
    act = {"attributes": "Change attributes of"}.get(plan.action, plan.action.capitalize())
    if not click.confirm(f"{act} {runs}?", err=True):
        raise click.Abort


def _do(plan: Plan, begin: Callable[[Desk], AsyncGenerator[BulkProgress, None]], given: dict[str, Any]) -> int:
    told: list[BulkProgress] = []
    progress = ProgressLine(_DOING[plan.action], plan.can if plan.exact else None)

    async def work(desk: Desk) -> None:
        with _interrupted() as stop:
            async with aclosing(begin(desk)) as pages:
                async for page in pages:
                    told.append(page)
                    progress.show(page.changed)
                    if given["as_json"]:
                        emit("holdfast.bulk/1", page, on_one_line=True)
                    if stop.is_set():
                        return

    try:
        acting(given["url"], work)
    finally:
        progress.end()
    done = told[-1] if told else BulkProgress(action=plan.action, changed=0, finished=True)
    if not given["as_json"] or not done.finished:
        _told(plan, done, given["as_json"])
    if not done.finished:
        return _INTERRUPTED
    short = sum(done.failed.values()) or done.changed < plan.can
    return 0 if not short else IN_PART if done.changed else NOTHING_CHANGED


def _told(plan: Plan, done: BulkProgress, err: bool) -> None:
    failed, late = sum(done.failed.values()), sum(done.cannot.values()) - sum(plan.cannot.values())
    said = [f"{PAST[plan.action]} {done.changed:,}"]
    said += [f"failed {failed:,}"] if failed else []
    said += [f"{late:,} could not any more"] if done.finished and late > 0 else []
    if not done.finished:
        of = f" of {plan.can:,}" if plan.exact else ""
        said = [f"stopped: {said[0]}{of}", *said[1:], "the same command does the rest"]
    say_wrapped(", ".join(said), err=err or not done.finished)
    for run_id, error in list(done.errors.items())[:10]:
        say_wrapped(f"  {run_id}: {error}", err=True)


@contextmanager
def _interrupted() -> Iterator[asyncio.Event]:
    """Yield what is set by the first Ctrl-C, so that the page in hand is done; the second one stops at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, first)
    except (NotImplementedError, RuntimeError, ValueError):
        yield stop  # there are none here, or this is not the main thread
        return
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
