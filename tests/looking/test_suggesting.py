"""Completions of the filter language: what may stand where a person writes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, workflow
from holdfast.contract.rows import Status
from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.looking.about.suggesting import _begin
from holdfast.looking.query import parse
from holdfast.testing import TestEngine


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


@workflow(name="nightly report")
async def report(ctx: Context) -> None:
    await ctx.receive("never")


@pytest.fixture
async def desk() -> AsyncIterator[LocalDesk]:
    async with TestEngine(workflows=[approval, report]) as engine:
        await engine.start(approval, id="order-1", attributes={"customer": "c-1", "size": 3, "state": "new one"})
        await engine.start(approval, id="order-2", attributes={"customer": "c-2"})
        await engine.start(report, id="night-1")
        await engine.settle()
        yield LocalDesk(engine.store)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sta", ["status:", "state="]),
        ("is:a", ["is:attention"]),
        ("-st", ["-status:"]),
        ("status:fa", ["status:failed"]),
        ("status:failed,blo", ["status:failed,blocked"]),
        ("-status:comple", ["-status:completed"]),
        ("workflow:app", ["workflow:approval"]),
        ('workflow:"nigh', ['workflow:"nightly report"']),
        ("approv", ["workflow:approval"]),
        ("custo", ["customer="]),
        ("customer=", ["customer=c-1", "customer=c-2"]),
        ("customer=c-2", ["customer=c-2"]),
        ("state=", ['state="new one"']),
        ("size=", ["size=3"]),
        ("created:-2", ["created:-24h"]),
        ("waiting:me", ["waiting:message"]),
        ("order-", ["order-2", "order-1"]),
        ("id:night", ["id:night-1"]),
        ("parent:order-2", ["parent:order-2"]),
        ("tenant:a", []),
        ("statsu:f", []),
        ("zzz", []),
    ],
)
async def test_what_is_begun_is_completed(desk, text, wanted):
    """FACES 4: words, statuses, workflows, names and values of attributes."""
    found = await desk.suggest(f"is:open {text}")
    assert [each.text for each in found.items] == wanted
    assert (found.start, found.end) == (8, 8 + len(text))


async def test_only_the_part_at_the_place_is_completed(desk):
    text = 'waiting:"message approved" status:fa workflow:approval'
    found = await desk.suggest(text, at=text.index("fa") + 2)
    completed = text[: found.start] + found.items[0].text + text[found.end :]
    assert completed == text.replace("fa ", "failed ")
    inside = await desk.suggest('waiting:"message app', at=20)
    assert (inside.start, inside.items) == (0, [])
    for wrong in (-1, 55):
        with pytest.raises(BadInput, match="at must be between"):
            await desk.suggest(text, at=wrong)


async def test_nothing_begun_offers_every_word(desk):
    offered = {each.text for each in (await desk.suggest("")).items}
    assert {"status:", "workflow:", "created:", "is:open", "customer="} <= offered
    assert {each.text for each in (await desk.suggest("status:")).items} == {f"status:{each}" for each in Status}


@given(st.text(max_size=30))
def test_a_part_begins_after_a_blank_that_is_not_quoted(text):
    start = _begin(text, len(text))
    assert start == 0 or text[start - 1].isspace()


async def test_what_is_offered_can_be_read(desk):
    for text in ("", "s", "status:", "workflow:", "customer=", "state=", "is:", "created:", "order", "-"):
        for each in (await desk.suggest(text)).items:
            if not each.text.endswith((":", "=")):
                parse(each.text, 1_800_000_000_000_000)
