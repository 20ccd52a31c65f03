"""The desk: everything that a face can show or do is one of its methods."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.histories.recorded import RecordedRun
from holdfast.looking.doctor import HouseFinding
from holdfast.looking.views import Count, HistoryPage, LetterGroup, LetterView, Page, RunView, Why, WorkerView


class Desk(ABC):
    """One interface for every face; what one face can do, all can.

    Filters are texts of the filter language (see `looking/query.py`). With `relative` sentences say times as people
    read them, "in 38 s"; otherwise as instants.
    """

    @abstractmethod
    async def heads(
        self, which: str = "", *, limit: int = 50, cursor: str | None = None, relative: bool = False
    ) -> Page:
        """Return a page of runs, newest first, each with why it is where it is.

        Raises:
            BadFilter: the filter cannot be read, or the cursor belongs to another.
        """

    @abstractmethod
    async def count(self, which: str = "") -> Count:
        """Count runs, up to 10,000."""

    @abstractmethod
    async def why(self, run_id: str, *, relative: bool = False) -> Why:
        """Return why a run is where it is, with the chain of runs that it waits for.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def run(self, run_id: str, *, relative: bool = False) -> RunView:
        """Return one run with its payloads and steps.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def history(
        self, run_id: str, *, after: int = 0, limit: int = 100, newest: bool = False, archived: bool = False
    ) -> HistoryPage:
        """Return facts of a run's history, those after a number, in their order.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def record(self, run_id: str) -> RecordedRun:
        """Return a run's input and history as it stands, to be replayed against code.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def letters(self, *, limit: int = 50, seen: bool | None = False) -> list[LetterView]:
        """Return dead letters, newest first: those that no person has seen, those that were, or (None) all."""

    @abstractmethod
    async def letter_groups(self) -> list[LetterGroup]:
        """Return the newest 1,000 unseen dead letters by their cause, the most frequent first."""

    @abstractmethod
    async def doctor(self) -> list[HouseFinding]:
        """Return what is wrong with the house, each with its remedy, and what was found to be well."""

    @abstractmethod
    async def workers(self) -> list[WorkerView]:
        """Return the workers that there are, and those that died of late."""
