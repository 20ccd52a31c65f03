"""Why a run waits or has ended: one sentence with a stable code, made from facts that were read before.

Rules are tried in order, and the first that fits makes the sentence. They read nothing themselves: a list reads the
facts of all its rows in a few queries (`facts.py`), and then each row gets its sentence.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast.clock import to_datetime
from holdfast.contract.heads import RunHead
from holdfast.looking.facts import Facts
from holdfast.looking.times import Times
from holdfast.looking.views import Count, Why
from holdfast.looking.why.ends import blocked, ended, ending, moving, paused
from holdfast.looking.why.saying import Code, discreet
from holdfast.looking.why.waits import waiting
from holdfast.looking.why.workers import pending, running
from holdfast.texts import shortened

LONGEST = 160
DEPTH = 10
"""How many runs a chain may have."""


def explain(head: RunHead, facts: Facts, times: Times, depth: int = 1) -> Why:
    """Return why a run is where it is, with the chain of runs it waits for as deep as facts go."""
    return _explained(head, facts, times, depth, (head.id,))


def _explained(head: RunHead, facts: Facts, times: Times, depth: int, above: tuple[str, ...]) -> Why:
    if times.discreet:
        head = discreet(head)
    said = next(said for rule in _RULES if (said := rule(head, facts, times)) is not None)
    chain: list[Why] = []
    text = said.text
    if said.follows is not None and depth > 0 and said.follows not in above:
        followed = facts.heads.get(said.follows)
        if followed is not None:
            below = _explained(followed, facts, times, depth - 1, (*above, followed.id))
            chain = [msgspec.structs.replace(below, chain=[]), *below.chain]
            text = f"{text}, {_continued(below.sentence)}"
    return Why(
        run=head.id,
        code=said.code,
        sentence=shortened(" ".join(text.split()), LONGEST),
        since=to_datetime(said.since) if said.since is not None else None,
        until=to_datetime(said.until) if said.until is not None else None,
        subject=said.subject,
        chain=chain[:DEPTH],
        help=list(said.help),
        others=_others(head, facts),
    )


def _others(head: RunHead, facts: Facts) -> Count | None:
    counted = facts.others.get(head.id)
    return Count(n=max(counted.n - 1, 0), exact=counted.exact) if counted is not None else None


def _continued(sentence: str) -> str:
    """Return a sentence as it goes on after the run that it is about."""
    lower = sentence[:1].lower() + sentence[1:]
    if sentence.startswith("Step "):
        return f"whose {lower}"
    if sentence.startswith(("Cancelled", "Paused", "Blocked", "Terminated", "Being", "Undoing", "Moved", "On its")):
        return f"which is {lower}"
    if sentence.startswith(("Its ", "It ", "No ", "A ")):
        return f"of which: {lower}"
    return f"which {lower}"


CODES: tuple[str, ...] = get_args(Code)
_RULES = (ended, moving, blocked, paused, ending, pending, running, waiting)
