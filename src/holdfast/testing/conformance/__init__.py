"""The store contract as tests: what every store must do, whoever wrote it.

A test module makes one class from `StoreConformance` and gives it two fixtures:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self): ...      # an open store on an empty database, closed afterwards

        @pytest.fixture
        async def another(self): ...    # a function that opens one more store on the same database, or a skip

The classes it is made of can be used one by one while a store is being written.
"""

from __future__ import annotations

from holdfast.testing.conformance.claims import ClaimConformance
from holdfast.testing.conformance.fencing import FencingConformance, TerminalConformance
from holdfast.testing.conformance.inbox import InboxConformance
from holdfast.testing.conformance.reads import ReadConformance
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    Another,
    a_send,
    claim,
    end,
    ended,
    entry,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
)
from holdfast.testing.conformance.starts import StartConformance
from holdfast.testing.conformance.turns import TurnConformance
from holdfast.testing.conformance.workers import WorkerConformance


class StoreConformance(
    StartConformance, FencingConformance, TerminalConformance, InboxConformance, TurnConformance, ClaimConformance,
    WorkerConformance, ReadConformance,
):  # fmt: skip
    """Everything a store must do."""


__all__ = [
    "LEASE",
    "NOW",
    "SECOND",
    "TERMINAL",
    "Another",
    "ClaimConformance",
    "FencingConformance",
    "InboxConformance",
    "ReadConformance",
    "StartConformance",
    "StoreConformance",
    "TerminalConformance",
    "TurnConformance",
    "WorkerConformance",
    "a_send",
    "claim",
    "end",
    "ended",
    "entry",
    "message",
    "new_run",
    "one",
    "parked",
    "row",
    "started",
    "turn",
]
