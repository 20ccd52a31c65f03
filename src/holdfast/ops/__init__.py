"""Watching and tending an engine: what operators need besides the runs themselves."""

from __future__ import annotations


def step_name(path: str) -> str:
    """Return the name of the step at a path, the same in every branch, iteration and repetition.

    >>> step_name("orders/~3/charge#2")
    'charge'
    """
    return path.rpartition("/")[2].partition("#")[0]
