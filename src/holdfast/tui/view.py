"""A view of the screen: what it asks of the desk, and what it shows of the answer; nothing here knows a terminal."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from datetime import UTC, datetime, tzinfo
from typing import ClassVar, NamedTuple

from rich.text import Text

from holdfast.tui.drawing.lines import WANTS, Row
from holdfast.tui.house import House

START = datetime(1970, 1, 1, tzinfo=UTC)


class Target(NamedTuple):
    """What an act is about: runs by their ids or by a filter, or dead letters."""

    ids: tuple[str, ...] = ()
    where: str = ""
    letters: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids or self.where or self.letters)


class View(ABC):
    """One of the things that the screen can show.

    It is looked at again each second while it is shown, and keeps its last answer in between.
    """

    title: ClassVar[str] = ""
    titles: tuple[str, ...] = ()
    """Of its columns; the last has the room that is left."""
    spare: tuple[int, ...] = ()
    """Which columns are left out first where there is little room."""
    wants: ClassVar[int] = WANTS
    """How many columns the last cell wants before others are spared."""
    hint: ClassVar[str] = ""
    """Its keys, for the line at the bottom."""

    def __init__(self, zone: tzinfo | None) -> None:
        self.zone = zone
        self.as_of = START
        """When it was looked last, by the clock of the store."""
        self.selected: set[str] = set()
        self.cursor: str | None = None
        """The key of the row under the cursor."""

    @abstractmethod
    async def look(self, house: House) -> None:
        """Ask what it shows.

        Raises:
            HoldfastError, OSError: the answer did not come; the last one stays.
        """

    @abstractmethod
    def rows(self, width: int) -> list[Row]:
        """Return its rows, for so many columns."""

    def above(self, width: int) -> list[Text]:
        """Return the lines above its rows."""
        return []

    def below(self, width: int) -> list[Text]:
        """Return what is told of the row under the cursor."""
        return []

    def empty(self) -> str:
        """Return what is said where there are no rows."""
        return "nothing yet"

    def opened(self) -> View | None:
        """Return what the row under the cursor opens."""
        return None

    def target(self) -> Target:
        """Return what an act would be about."""
        return Target()

    def held(self) -> tuple[str, str, bool] | None:
        """Return what is paused and resumed as a whole: its kind, its name, and whether it is paused."""
        return None

    def command(self) -> str:
        """Return the same as a command line."""
        return "holdfast"

    def to_copy(self) -> str:
        """Return the id of what is under the cursor."""
        return self.cursor or ""


def command_line(*words: str) -> str:
    """Return a command as it is typed."""
    return shlex.join(word for word in words if word)
