"""Queries: a look at the state of a run's code, from outside, between turns."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.determinism.guard import guard
from holdfast.errors import BadInput, UnknownQuery
from holdfast.payloads import codec
from holdfast.replay.journal import Journal
from holdfast.replay.loop import QUERY, SCOPE, _running_loop, _set_running_loop


def ask(journal: Journal, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], guarded: bool) -> bytes:
    """Return the encoded answer of the handler that the run's code registered under a name.

    Nothing is recorded; a handler that tries to act is stopped by BadInput, and what it asked for does not happen.

    Raises:
        UnknownQuery: the code registered no handler of that name, or has not come to it yet.
        NonDeterministic: the handler does I/O.
    """
    blocked = journal.violation or journal.loop.violation
    if blocked is not None:
        raise blocked
    handler = (journal.queries or {}).get(name)
    if handler is None:
        known = ", ".join(map(repr, journal.queries or ())) or "none"
        raise UnknownQuery(f"run {journal.run.id} answers no query {name!r}; it answers: {known}")
    context = contextvars.Context()
    context.run(SCOPE.set, QUERY)
    loop, outer = journal.loop, _running_loop()
    silent, journal.silent = journal.silent, True
    _set_running_loop(loop)
    if guarded:
        guard.enter(ask.__code__)
    try:
        answer = context.run(_answer, handler, args, kwargs, f"the answer to query {name!r} of run {journal.run.id}")
    finally:
        forbidden: Exception | None = guard.leave() if guarded else None
        _set_running_loop(outer)
        forbidden, loop.violation = forbidden or loop.violation, None  # it is the handler's, not the workflow's
        journal.silent = silent
        woken = loop.forget_ready()
        if forbidden is not None:
            raise forbidden
    if woken:
        raise BadInput(f"the handler of query {name!r} woke a task of run {journal.run.id}: a query only reads")
    return answer


def _answer(handler: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> bytes:
    value = handler(*args, **kwargs)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise BadInput(f"{where} is something to await: the handler must be a plain function")
    return codec.encode(value, where)
