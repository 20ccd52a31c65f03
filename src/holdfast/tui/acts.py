"""Acts in words: what each does, when it fits, what it needs, and the same as a command line."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.looking.views import SelectionView
from holdfast.tui.view import Target, command_line


class ActWords(NamedTuple):
    """An act on runs, in the words of the dashboard."""

    verb: str
    past: str
    one: str
    many: str
    undo: str = ""
    field: str = ""
    """What else may be said: `for` how long, `from` which step."""


ACTS = {
    "pause": ActWords(
        "Pause", "paused",
        "It begins nothing more; the step in hand ends. Resume lets it go on where it is.",
        "They begin nothing more; steps in hand end. Resume lets them go on where they are.",
        "resume", "for",
    ),
    "resume": ActWords("Resume", "resumed", "It goes on where it was.", "They go on where they were."),
    "cancel": ActWords(
        "Cancel", "cancelled",
        "It is asked to stop: its step in hand ends, its code may clean up, and nothing new begins.",
        "They are asked to stop: steps in hand end, their code may clean up, and nothing new begins.",
        "resume", "undo",
    ),
    "retry": ActWords(
        "Retry", "retried",
        "It goes on from the step that failed. What is done and was not undone stays done, and keeps its keys.",
        "They go on from the steps that failed. What is done and was not undone stays done, and keeps its keys.",
    ),
    "rerun": ActWords(
        "Rerun", "run again",
        "A step and all after it are done again, with the code there is now.",
        "They are done again from their beginning, with the code there is now.",
        "", "from",
    ),
    "recover": ActWords(
        "Recover", "recovered",
        "It is tried again with the code that the workers have now.",
        "They are tried again with the code that the workers have now.",
    ),
    "nudge": ActWords(
        "Try now", "nudged",
        "What waits to be tried again is tried now. This adds no attempt to its budget.",
        "What waits to be tried again is tried now. This adds no attempt to their budgets.",
    ),
    "terminate": ActWords(
        "Terminate", "terminated",
        "It ends here and now, without asking its code. Nothing is undone.",
        "They end here and now, without asking their code. Nothing is undone.",
    ),
}  # fmt: skip
LETTER_ACTS = {
    "replay": ActWords(
        "Replay", "replayed",
        "Its run goes on from the step that failed; a message is delivered again. Steps keep their keys.",
        "Their runs go on from the steps that failed; messages are delivered again. Steps keep their keys.",
    ),
    "acknowledge": ActWords(
        "Acknowledge", "acknowledged",
        "It is noted that it was seen. Nothing else is done; it leaves this list.",
        "It is noted that they were seen. Nothing else is done; they leave this list.",
    ),
    "remove": ActWords(
        "Remove", "removed",
        "The letter is removed. Its run stays as it is.",
        "The letters are removed. Their runs stay as they are.",
    ),
}  # fmt: skip
_HELD_ACTS = {
    "pause": ("paused", "No step of it begins until it is resumed."),
    "resume": ("resumed", "Steps that wait begin again."),
}
_SCHEDULE_ACTS = {
    "pause": ("paused", "It starts nothing until it is resumed. What it started goes on."),
    "resume": ("resumed", "It goes on with its next tick; missed ticks are caught up on as it says itself."),
    "trigger": ("started", "A run of it is started now, beside its timetable."),
}
_NAMED = 3
MANY_AT_ONCE = 100
"""Terminating more than so many asks for their number."""


def held_act(verb: str, kind: str) -> tuple[str, str]:
    """Return how an act on a queue, a limit or a schedule is said when it is done, and what it does."""
    return (_SCHEDULE_ACTS if kind == "schedule" else _HELD_ACTS)[verb]


def held_acts(kind: str, paused: bool) -> dict[str, str]:
    """Return the acts that fit, each with what it does."""
    every = _SCHEDULE_ACTS if kind == "schedule" else _HELD_ACTS
    other = "pause" if paused else "resume"
    return {verb: f"{verb.capitalize()}: {does}" for verb, (_, does) in every.items() if verb != other}


def planned(plan: SelectionView) -> str:
    """Return what a dry run found."""
    cannot = sum(plan.cannot.values())
    why = ", ".join(f"{count:,} {status}" for status, count in plan.cannot.items())
    more = "" if plan.exact else "+"
    one = plan.matched == 1 and plan.exact
    runs = f"{plan.matched:,}{more} run{' matches' if one else 's match'}"
    rest = f", {cannot:,} cannot ({why})" if cannot else ""
    return f"{runs}: {plan.can:,}{more} can be {ACTS[plan.action].past}{rest}."


def typed(action: str, target: Target, reason: str, more: str = "") -> str:
    """Return an act as it is typed; of many ids the first three stand for all."""
    words = [action, *target.ids[:_NAMED], *(["--where", target.where] if target.where else [])]
    if target.letters:
        words = ["letters", {"acknowledge": "ack"}.get(action, action), *target.letters[:_NAMED]]
    elif more:
        words += ["--compensate"] if ACTS[action].field == "undo" else [f"--{ACTS[action].field}", more]
    line = command_line("holdfast", *words, *(["--reason", reason] if reason else []))
    return f"{line} ..." if max(len(target.ids), len(target.letters)) > _NAMED else line
