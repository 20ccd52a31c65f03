"""Queues as engines serve them: how many attempts from one run at once, and whether long waits get a turn first."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.definitions.names import check_queue
from holdfast.errors import BadInput
from holdfast.texts import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue that an engine serves, where more is to be said of it than its name.

        Engine(..., queues=["default", Queue(name="bank", at_once=2)])

    Args:
        name: what activities and workflows refer to.
        at_once: how many attempts from this queue run at the same time, on all workers of the database together; None
            for any number. Each engine goes by its own declaration.
        ageing: whether one in ten of what this engine takes from it, attempts and runs, is the one that has waited
            longest, whatever its priority. Otherwise priorities are strict.
    """

    name: str
    at_once: int | None = None
    ageing: bool = False

    def __post_init__(self) -> None:
        check_queue(self.name, "a queue's name")
        most: object = self.at_once
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= 100_000):
            raise BadInput(
                f"at_once of queue {self.name!r} must be a whole number from 1 to 100,000, not {shown(most)}"
            )
        if not isinstance(self.ageing, bool):
            raise BadInput(f"ageing of queue {self.name!r} is True or False, not {shown(self.ageing)}")
