"""Whose turn it is among suspects that run in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.engine.steps.suspects import SuspectTurns


def verb(journal: object = None) -> Any:
    return SimpleNamespace(journal=journal)


def test_one_suspect_at_a_time_has_the_turn():
    """B1"""
    turns, said = SuspectTurns(), []
    first, second = verb(), verb()
    assert turns.ask(first, lambda: said.append("first"))
    assert not turns.ask(second, lambda: said.append("second"))
    turns.leave(second)  # harmless: it does not have it
    assert turns.holder is first
    turns.leave(first)
    assert (turns.holder, said) == (second, ["second"])


def test_no_suspect_has_the_turn_while_a_run_is_on_trial():
    """B1 B24 The code of that run may end the process, for which the step would be blamed."""
    turns, said = SuspectTurns(), []
    suspect = verb()
    turns.hold(1)
    assert not turns.ask(suspect, lambda: said.append("go"))
    assert turns.holder is None
    turns.release(1)
    assert (turns.holder, said) == (suspect, ["go"])


def test_the_turn_waits_for_all_whose_code_may_end_the_process():
    """B1 B24 The step that has the turn and has not begun gives it back, and is the next."""
    turns, said = SuspectTurns(), []
    first, second = verb(), verb()
    assert turns.ask(first, lambda: said.append("first"))
    assert not turns.ask(second, lambda: said.append("second"))
    assert not turns.put_back(first, lambda: said.append("first again")), "nothing keeps it from beginning"
    turns.hold(1)
    turns.hold(2)
    assert turns.put_back(first, lambda: said.append("first again"))
    turns.release(1)
    turns.release(1)
    assert (turns.holder, said) == (None, [])
    turns.release(2)
    assert (turns.holder, said) == (first, ["first again"])


def test_the_steps_of_a_run_that_leaves_are_withdrawn_from_the_line_too():
    """B1"""
    turns, journal, said = SuspectTurns(), object(), []
    turns.hold(1)
    turns.ask(verb(journal), lambda: said.append("left"))
    turns.ask(verb(), lambda: said.append("stayed"))
    turns.forget(journal)
    turns.release(1)
    assert said == ["stayed"]
