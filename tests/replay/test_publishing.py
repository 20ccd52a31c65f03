"""Publishing, attributes, evidence, requests and replies: asked for once, in the turn that records them."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.driving import START, assert_deterministic, assert_replays, execution, live, resumed, store

from holdfast import Context, workflow
from holdfast.context.api import Request
from holdfast.context.waits import PublishVerb
from holdfast.contract.rows import Message
from holdfast.contract.turns import EventRule, Evidence, Reply
from holdfast.errors import BadInput, NotSerializable, QueueFull, ReceiveTimeout
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.turn import Ending


def work(x: Any) -> Any:
    return x


def only(recording: Any) -> Any:
    """Return the effects of the one turn that had some."""
    found = [turn[9] for turn in recording.turns if turn[9] is not None]
    assert len(found) == 1
    return found[0]


@workflow
async def publishing(ctx: Context) -> str:
    try:
        await ctx.publish("price", {"eur": 3})
    except QueueFull as full:
        return str(full)
    return "published"


def test_an_event_is_published_by_the_turn_that_records_the_call():
    """S2-17 Id, name, value and time are settled there, and so is where a refusal would be told."""
    recording = live(publishing)
    assert recording.result == "published"
    event = only(recording).publishes[0]
    row = next(row for row in recording.rows if row.kind == entries.PublishBegun.kind)
    assert (event.name, event.payload, event.at, event.rule) == ("price", '{"eur":3}', START, EventRule())
    assert (event.id, event.deduplicate) == (f"run-1/1/{row.location}", False)
    assert (event.location, event.seq) == (row.location, row.seq)
    assert decode_entry(row.kind, event.refusal).refused == "full"
    assert recording.paths(entries.PublishBegun) == ["publish price"]
    assert_replays(recording)


def test_a_full_queue_is_an_error_when_awaited_live_and_replayed():
    """B23"""
    run = execution(publishing)
    turn = run.begin()
    verb = turn.started[0]
    assert isinstance(verb, PublishVerb)
    assert verb.refused is None
    event = turn.effects.publishes[0]
    rows = [row._replace(data=event.refusal) if row.seq == event.seq else row for row in store([], turn)]
    again = execution(publishing)
    verb = again.begin(rows).started[0]
    assert verb.refused == "full"
    for each in (run, again):
        turn = each.apply(verb.location, entries.SendDone("full"), START)
        assert "too many events 'price'" in turn.outcome.payload


def test_an_event_with_an_id_is_published_once_and_another_payload_is_a_mismatch():
    """G13 S1-37"""

    def make(payload: int) -> Any:
        @workflow
        async def flow(ctx: Context) -> None:
            await ctx.publish("price", payload, id="price-1")
            await ctx.receive("never")

        return flow

    recording = live(make(1))
    assert (only(recording).publishes[0].id, only(recording).publishes[0].deduplicate) == ("price-1", True)
    turn, _ = resumed(recording, make(2))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "with another payload" in turn.outcome.error.message


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"name": "x", "id": ""}, {"name": "x", "id": 7}])
def test_names_and_ids_of_events_are_checked(wrong):
    """GUARANTEES 6.11"""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.publish(**wrong)

    assert live(flow).outcome.error.type == "holdfast.errors.BadInput"


def test_attributes_are_set_by_the_turn_that_records_them():
    """S0-53"""

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.set_attributes({"customer": "kim", "total": 3.5}, paid=False)
        ctx.set_attributes()
        ctx.set_attributes(total=None, n=7)
        await ctx.step(work, 1)

    recording = live(flow)
    assert only(recording).attributes == {"customer": '"kim"', "total": None, "paid": "false", "n": "7"}
    marks = [decode_entry(row.kind, row.data) for row in recording.rows if row.kind == entries.AttributesSet.kind]
    assert [msgspec.json.decode(mark.values) for mark in marks] == [
        {"customer": "kim", "total": 3.5, "paid": False},
        {"total": None, "n": 7},
    ]
    assert_replays(recording)


@pytest.mark.parametrize("wrong", [{"a/b": 1}, {"x": [1]}, {"x": math.nan}, {"x": object()}, {1: 1}])
def test_attributes_that_cannot_be_searched_by_are_refused(wrong):
    """S0-53"""

    @workflow
    async def flow(ctx: Context) -> None:
        with pytest.raises(BadInput):
            ctx.set_attributes(wrong)

    recording = live(flow)
    assert recording.outcome.ending is Ending.COMPLETED
    assert recording.rows == []


def test_other_attributes_on_replay_are_a_mismatch():
    """G13 S1-37"""

    def make(n: int) -> Any:
        @workflow
        async def flow(ctx: Context) -> None:
            ctx.set_attributes(n=n)
            await ctx.step(work, 1)
            await ctx.receive("never")

        return flow

    turn, _ = resumed(live(make(1)), make(2))
    assert turn.outcome.ending is Ending.BLOCKED


def test_evidence_has_an_id_that_a_replay_gives_again():
    """S3-19"""

    @workflow
    async def flow(ctx: Context) -> list[str]:
        ids = [ctx.evidence("approval", {"by": "kim"}), ctx.evidence("approval")]
        await ctx.step(work, 1)
        return ids

    recording = live(flow)
    first, second = only(recording).evidence
    assert (first, second.data) == (Evidence(id=first.id, kind="approval", data='{"by":"kim"}', at=START), "null")
    assert recording.result == [first.id, second.id]
    assert len({uuid.UUID(each) for each in recording.result}) == 2
    assert recording.paths(entries.EvidenceAdded) == ["evidence approval", "evidence approval#2"]
    assert_replays(recording)


def test_evidence_of_a_bad_kind_or_with_data_that_cannot_be_kept_is_refused():
    """S3-19 GUARANTEES 6.1"""

    @workflow
    async def flow(ctx: Context) -> None:
        with pytest.raises(BadInput):
            ctx.evidence("a/b")
        with pytest.raises(NotSerializable):
            ctx.evidence("object", object())

    assert live(flow).rows == []


def test_a_new_note_before_recorded_facts_is_a_mismatch_and_says_how_to_add_it():
    """G13 S1-37"""

    def make(*notes: Any) -> Any:
        @workflow
        async def flow(ctx: Context) -> None:
            for note in notes:
                note(ctx)
            await ctx.step(work, 1)
            await ctx.receive("never")

        return flow

    recording = live(make())
    for note, name in [
        (lambda ctx: ctx.evidence("proof"), "add-proof"),
        (lambda ctx: ctx.set_attributes(n=1), "add-attributes"),
        (lambda ctx: ctx.reply(Request(1, "m1"), 1), "add-reply to"),
    ]:
        turn, _ = resumed(recording, make(note))
        assert turn.outcome.ending is Ending.BLOCKED
        assert turn.effects is None
        assert f'ctx.patched("{name}")' in turn.outcome.error.message


@dataclass(frozen=True)
class Question:
    n: int


@workflow
async def answering(ctx: Context) -> int:
    total = 0
    while total < 10:
        request = await ctx.receive_request("add", Question)
        total += request.payload.n
        ctx.reply(request, {"total": total})
    return total


def test_a_request_is_answered_by_the_id_of_its_message():
    """S3-12 B28"""
    messages: list[Any] = [("add", {"n": 4}), ("add", {"n": 5}), ("add", {"n": 6})]
    recording = live(answering, messages=messages)
    assert recording.result == 15
    replies = [reply for turn in recording.turns if turn[9] for reply in turn[9].replies]
    assert replies == [Reply(message=f"m{n}", payload=f'{{"total":{total}}}') for n, total in [(1, 4), (2, 9), (3, 15)]]
    assert recording.paths(entries.ReceiveBegun) == ["receive add", "receive add#2", "receive add#3"]
    assert_deterministic(answering, messages=messages)


def test_a_wait_for_a_request_has_a_timeout_and_a_default():
    """B13"""

    @workflow
    async def flow(ctx: Context) -> Any:
        with pytest.raises(ReceiveTimeout):
            await ctx.receive_request("add", timeout=timedelta(seconds=1))
        with pytest.raises(BadInput):
            ctx.receive_request(["a", "b"])  # type: ignore[call-overload]
        with pytest.raises(BadInput):
            ctx.reply("m1", 1)  # type: ignore[arg-type]
        return await ctx.receive_request("add", Question, timeout=timedelta(seconds=1), default=None)

    recording = live(flow)
    assert recording.result is None
    assert_replays(recording)


def test_own_messages_are_taken_before_events_and_each_in_order():
    """S2-16 B13 A receive takes the run's own messages first."""

    @workflow
    async def flow(ctx: Context) -> list[Any]:
        await ctx.receive("go")
        return [await ctx.receive(["a", "b"]) for _ in range(5)]

    run = execution(flow)
    rows = store([], run.begin())
    kinds = [(1, "notice", "b"), (2, "event", "a"), (3, "message", "a"), (4, "event", "b"), (5, "message", "b")]
    waiting = [Message(n, kind, name, f"m{n}", str(n), START) for n, kind, name in kinds]
    turn = run.deliver(waiting, START)
    assert not turn.consumed
    rows = store(rows, turn)
    for each in (run, execution(flow)):
        if each is not run:
            each.begin(rows, waiting)
        turn = each.deliver([Message(6, "message", "go", "m6", "0", START)], START)
        assert turn.consumed == [6, 3, 5, 1, 2, 4]
        facts = [decode_entry(row.kind, row.data) for row in turn.entries if row.kind == entries.MessageReceived.kind]
        assert [fact.source for fact in facts] == ["", "", "", "notice", "event", "event"]
        assert turn.outcome.payload == '[["a",3],["b",5],["b",1],["a",2],["b",4]]'


def test_events_that_nobody_waits_for_are_given_back():
    """G8 Notices and messages stay."""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.receive(["a", "c"])
        await ctx.receive("never")

    run = execution(flow)
    run.begin()
    kinds = [("event", "b"), ("message", "b"), ("event", "a"), ("notice", "d"), ("event", "b"), ("event", "c")]
    messages = [Message(n, kind, name, "", "1", START) for n, (kind, name) in enumerate(kinds, 1)]
    assert run.journal.unwanted_events() == []
    turn = run.deliver(messages, START)
    assert turn.consumed == [3]
    assert run.journal.unwanted_events() == [1, 5, 6]
    assert run.journal.unwanted_events() == []
    left = [message.n for queue in run.journal.inbox.values() for message in queue]
    assert sorted(left) == [2, 4]


def test_inbox_rows_of_unknown_kinds_are_consumed():
    """What another version of holdfast puts there stops no run."""
    run = execution(answering)
    run.begin()
    turn = run.deliver([Message(1, "resume", "", "", "", START), Message(2, "novelty", "", "", "x", START)], START)
    assert (turn.consumed, turn.entries, turn.outcome) == ([1, 2], [], None)
