"""The store contract as tests: what every store must do.

A test module makes one class from `StoreConformance` and gives it two fixtures:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self): ...      # an open store on an empty database, closed afterwards

        @pytest.fixture
        async def another(self): ...    # a function that opens one more store on the same database, or a skip

The classes it is made of can be used one by one while a store is being written.
"""

from __future__ import annotations

from holdfast.testing.conformance.attributes import AttributeConformance
from holdfast.testing.conformance.claims import ClaimConformance
from holdfast.testing.conformance.conclusions import ConclusionConformance
from holdfast.testing.conformance.events import EventConformance
from holdfast.testing.conformance.fencing import FencingConformance, TerminalConformance
from holdfast.testing.conformance.figures import FigureConformance
from holdfast.testing.conformance.flow import AgeingConformance, LaneConformance, WorkPauseConformance
from holdfast.testing.conformance.heads import HeadConformance
from holdfast.testing.conformance.house import HouseConformance
from holdfast.testing.conformance.inbox import InboxConformance, MessageConformance
from holdfast.testing.conformance.kept_places import KeptPlaceConformance
from holdfast.testing.conformance.keys import KeyConformance
from holdfast.testing.conformance.letters import EventLetterConformance, LetterConformance
from holdfast.testing.conformance.limited_tasks import LimitedTaskConformance
from holdfast.testing.conformance.limits import LimitConformance
from holdfast.testing.conformance.moving import MoveConformance, MovedConformance
from holdfast.testing.conformance.operators import CancelConformance, NudgeConformance, TerminateConformance
from holdfast.testing.conformance.pausing import PauseConformance
from holdfast.testing.conformance.purging import PurgeConformance
from holdfast.testing.conformance.queues import BroadcastConformance, QueueConformance
from holdfast.testing.conformance.reads import ReadConformance
from holdfast.testing.conformance.reopening import ReopenConformance
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
from holdfast.testing.conformance.schedules import ScheduleConformance
from holdfast.testing.conformance.starts import StartConformance
from holdfast.testing.conformance.tasks import TaskConformance
from holdfast.testing.conformance.tokens import TokenConformance
from holdfast.testing.conformance.trails import TrailConformance
from holdfast.testing.conformance.transactions import TransactionConformance
from holdfast.testing.conformance.turns import TurnConformance
from holdfast.testing.conformance.uniqueness import UniquenessConformance
from holdfast.testing.conformance.unread import UnreadConformance
from holdfast.testing.conformance.workers import WorkerConformance


class StoreConformance(
    StartConformance, FencingConformance, TerminalConformance, InboxConformance, MessageConformance,
    TurnConformance, ClaimConformance, WorkerConformance, ReadConformance, EventConformance, QueueConformance,
    BroadcastConformance, UnreadConformance, LetterConformance, EventLetterConformance, KeyConformance,
    CancelConformance, TerminateConformance, PauseConformance, ReopenConformance, AttributeConformance,
    UniquenessConformance, ScheduleConformance, PurgeConformance, TrailConformance, TaskConformance,
    TransactionConformance, ConclusionConformance, LimitConformance, KeptPlaceConformance, WorkPauseConformance,
    LaneConformance, AgeingConformance, LimitedTaskConformance, HeadConformance, HouseConformance, NudgeConformance,
    FigureConformance, TokenConformance, MoveConformance, MovedConformance,
):  # fmt: skip
    """Everything a store must do."""


__all__ = [
    "LEASE",
    "NOW",
    "SECOND",
    "TERMINAL",
    "AgeingConformance",
    "Another",
    "AttributeConformance",
    "BroadcastConformance",
    "CancelConformance",
    "ClaimConformance",
    "ConclusionConformance",
    "EventConformance",
    "EventLetterConformance",
    "FencingConformance",
    "FigureConformance",
    "HeadConformance",
    "HouseConformance",
    "InboxConformance",
    "KeptPlaceConformance",
    "KeyConformance",
    "LaneConformance",
    "LetterConformance",
    "LimitConformance",
    "LimitedTaskConformance",
    "MessageConformance",
    "MoveConformance",
    "MovedConformance",
    "NudgeConformance",
    "PauseConformance",
    "PurgeConformance",
    "QueueConformance",
    "ReadConformance",
    "ReopenConformance",
    "ScheduleConformance",
    "StartConformance",
    "StoreConformance",
    "TaskConformance",
    "TerminalConformance",
    "TerminateConformance",
    "TokenConformance",
    "TrailConformance",
    "TransactionConformance",
    "TurnConformance",
    "UniquenessConformance",
    "UnreadConformance",
    "WorkPauseConformance",
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
