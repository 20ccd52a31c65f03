"""Schedules, events and long runs on the terminal screen: what it says at the edges, and what is done from there."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from tests.conftest import with_schema
from tests.postgres.proxy import Proxy
from tests.postgres.servers import fresh_schema
from tests.support.hostile_texts import HOSTILE
from tests.support.screens import WORKFLOWS, look, order, picture, press, screen, seen
from tests.web.browser import shop as shops
from tests.web.browser.test_extremes import FACTS, lengthen
from tests.web.shop import approve, house

from holdfast.cli.database import desk_to_act, desk_to_look
from holdfast.looking import LocalDesk
from holdfast.testing import TestEngine
from holdfast.tui import House, Top

HOUR = timedelta(hours=1)


async def test_a_schedule_that_skips_says_which_ticks_had_no_run_and_why():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        engine.store.clock = engine.clock
        await engine.schedules.put("hourly", order, "lamp", cron="0 * * * *", overlap="skip")
        await engine.advance(4 * HOUR)
        async with screen(engine) as (app, pilot):
            await press(pilot, ["g", "s"])
            await seen(app, "hourly")
            await press(pilot, ["enter"])
            shown = await seen(app, "was still open")
            assert shown.count("· no run") == 3
            assert shown.count("· next") == 5
            await press(pilot, ["end", "enter"])
            await seen(app, "◆ approved")
            await press(pilot, ["escape", "p", *"late", "enter"])
            await seen(app, "hourly is paused")
            await seen(app, "‖ held back")


async def test_a_day_on_which_clocks_change_is_told_beside_its_tick():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        engine.store.clock = engine.clock
        await engine.schedules.put("spring", order, "lamp", cron="30 2 28 3 *", timezone="Europe/Berlin")
        async with screen(engine, size=(120, 24)) as (app, pilot):
            await press(pilot, ["g", "s"])
            await seen(app, "spring")
            await press(pilot, ["enter"])
            shown = await seen(app, "does not exist that day")
            assert "2027-03-28 03:00 +0200" in shown
            await press(pilot, ["j"])
            await seen(app, "clocks go forward from 02:00 to 03:00")


async def test_an_event_is_published_under_the_name_of_its_row_or_another():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        async with screen(engine) as (app, pilot):
            await press(pilot, ["g", "e"])
            await seen(app, "No event is queued")
            await press(pilot, ["s", *"parcel", "tab", *'{"id":7}', "tab", *"INC-7"])
            await seen(app, """holdfast publish parcel '{"id":7}' --reason INC-7""")
            await press(pilot, ["enter"])
            await seen(app, "parcel waits for a run")
            await press(pilot, ["s", *"8", "enter"])
            await seen(app, '"id":7')
            await look(app)
        acts = (await LocalDesk(engine.store).audit(action="publish")).items
        assert [(act.actor, act.target, act.detail["reason"]) for act in acts] == [("kim", "parcel", "INC-7")] * 2
        queued = (await LocalDesk(engine.store).events("parcel")).queued
        assert [each.payload for each in queued] == [{"id": 7}, 8]


async def test_no_control_sequence_of_what_is_in_the_house_reaches_the_terminal():
    """FACES 10.14: schedules, events, reasons and actors."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.schedules.put("nightly", order, "lamp", cron="30 2 * * *", by=HOSTILE[2], reason=HOSTILE[5])
        for text in HOSTILE[:39]:
            await engine.publish("<b>", {"said": text}, by="kim", reason=text.replace("\0", "0"))
        async with screen(engine, size=(200, 60)) as (app, pilot):
            for place, said in (("s", "nightly"), ("e", "<b>"), ("d", "no check"), ("a", "publish"), ("w", "alive")):
                await press(pilot, ["g", place])
                shown = [await seen(app, said)]
                await press(pilot, ["enter"])
                await look(app)
                shown.append(picture(app))
                for each in shown:
                    assert all(letter.isprintable() or letter == "\n" for letter in each)


async def test_a_run_of_a_hundred_thousand_facts_says_what_is_shown_of_it(tmp_path: Path):
    async with AsyncExitStack() as stack:
        shop = await shops.opened(stack, f"sqlite:///{tmp_path / 'shop.db'}")
        await shop.engine.start(shops.lengthy, 2, id="long")
        await shop.settle()
        lengthen(tmp_path / "shop.db", FACTS // 2)
        async with screen(shop.engine) as (app, pilot):
            await seen(app, "long")
            await press(pilot, ["enter"])
            await seen(app, "The newest 1,000 of 100,005 facts are drawn; history has all.")
            await press(pilot, ["2"])
            await seen(app, "steps that began in its newest facts; history has all.")
            await press(pilot, ["3"])
            await seen(app, "history 100,005")
            await press(pilot, ["end"])
            await look(app)
            await press(pilot, ["end"])
            await seen(app, "2000")


@pytest.mark.slow
async def test_a_server_that_goes_away_leaves_the_last_picture_which_is_true_again_after(postgres):
    """FACES 10, line 10, in the terminal: the connection is cut, and there is none for a while."""
    with fresh_schema(postgres) as schema, Proxy(postgres) as proxy:
        async with house(with_schema(postgres, schema)) as worker:
            await worker.start(approve, id="order-7")
            through = f"{proxy.url}?schema={schema}"
            app = Top(House("shop", lambda: desk_to_look(through), lambda: desk_to_act(through), "kim"), every=3600)
            async with app.run_test(size=(80, 24)):
                await seen(app, "Waits for message `approved`")
                proxy.refuse()
                proxy.cut()
                await worker.get("order-7").pause(by="lena", reason="bank down")
                await look(app)
                shown = await seen(app, "lost")
                assert "Waits for message `approved`" in shown
                proxy.heal()
                for _ in range(5):  # what was left of the connection may be noticed by the first
                    await look(app)
                shown = await seen(app, "Paused by lena")
                assert "lost" not in shown
