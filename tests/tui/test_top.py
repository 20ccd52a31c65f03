"""The terminal screen, driven by keys on a terminal that is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from tests.support.screens import (
    HOSTILE,
    WORKFLOWS,
    failing,
    family,
    look,
    order,
    picture,
    press,
    screen,
    seen,
)
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from textual import events
from textual.widgets import Input

from holdfast.cli.main import main
from holdfast.errors import StoreUnreachable
from holdfast.looking import LocalDesk
from holdfast.stores import open_store
from holdfast.testing import TestEngine
from holdfast.tui.runs import RunList

LOOK, COUNT = 8, 24
"""How many statements a look asks, and how many more at most every fifth: statuses, workers, figures."""


async def test_runs_are_listed_with_why_and_one_is_opened_by_keys():
    """FACES 8: the list, one run with its parts, its neighbour, and back, in 80 columns and 24 lines."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.start(order, "chair", id="order-2")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            shown = await seen(app, "order-1")
            assert "◷ waiting" in shown
            assert "Waits for message `approved`" in shown
            assert shown.index("order-2") < shown.index("order-1")
            await press(pilot, ["j", "enter"])
            shown = await seen(app, "1 of 1 steps")
            assert "order-1" in shown
            assert "✓ pack" in shown
            assert "◆ approved" in shown
            assert "█" in shown
            for text in ("packed lamp", "step completed", "STATE", "no children", "put nothing on record"):
                await press(pilot, ["tab"])
                await seen(app, text)
            await press(pilot, ["["])
            await seen(app, "order-2")
            await press(pilot, ["escape"])
            shown = await seen(app, "NOW, AND WHY")
            assert app.view.cursor == "order-2"
            assert all(len(line) <= 80 for line in shown.split("\n"))
            assert len(shown.split("\n")) == 24


async def test_the_list_shows_the_calls_of_the_run_under_the_cursor_and_why_in_full():
    """FACES 8: the run under the cursor stands below the list, with the attempt that failed last."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.start(failing, "x", id="bad-1")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            shown = await seen(app, "◷ carry ▒·▷")
            assert re.search(r"attempt 1  \d\d:\d\d:\d\d .*ConnectionError: 503 x", shown)
            await press(pilot, ["w"])
            shown = await seen(app, "holdfast nudge bad-1")
            assert "since " in shown
            assert all(len(line) <= 80 for line in shown.split("\n"))
            await press(pilot, ["escape", "j"])
            await look(app)
            shown = await seen(app, "✓ pack █  ◆ approved")
            assert "carry ▒" not in shown


async def test_nothing_is_cut_off_in_eighty_columns_after_an_hour_of_work():
    """FACES 8: the line at the top, all acts, and the timeline of what waited for long, in 80 columns."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        await engine.advance(timedelta(minutes=42, seconds=13))
        engine.store.clock = engine.clock
        await shops.count(shops.Shop(engine, engine.jumping), timedelta(minutes=5), 1_173, 31)
        async with screen(engine) as (app, pilot):
            await seen(app, "ended in 1 h")
            head = picture(app).split("\n")[0]
            assert head.rstrip().endswith("failed 2.6 %"), head
            await press(pilot, ["enter"])
            shown = await seen(app, "42 min 13 s")
            assert "…" not in "\n".join(line for line in shown.split("\n") if "approved" in line)
            await press(pilot, ["a"])
            acts = await seen(app, "Which act?")
            assert "Resume lets it go on" in " ".join(acts.split())


async def test_an_act_tells_its_dry_run_takes_a_reason_and_is_on_record():
    """FACES 0: every act has a dry run, a reason, the audit trail and its command line."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        run = await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-1")
            await press(pilot, ["p"])
            shown = await seen(app, "1 run matches: 1 can be paused.")
            assert "It begins nothing more" in shown
            assert "NOW, AND WHY" in shown, "the sheet hides what it is about"
            assert "▔" not in shown, "a field takes more than its line"
            assert await run.status() != "paused"
            await press(pilot, list("bank"))
            await seen(app, "holdfast pause order-1 --reason bank")
            await press(pilot, ["enter"])
            await seen(app, "order-1 is paused")
            assert await run.status() == "paused"
            [act] = (await LocalDesk(engine.store).audit(actor="kim")).items
            assert (act.action, act.target, act.detail["reason"]) == ("pause", "order-1", "bank")
            await press(pilot, ["u"])
            await seen(app, "1 can be resumed")
            await press(pilot, ["enter"])
            await seen(app, "order-1 is resumed")
            assert await run.status() != "paused"


async def test_many_runs_are_selected_and_acted_on_with_a_reason_or_not_at_all():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        for n in range(3):
            await engine.start(order, "lamp", id=f"order-{n}")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-0")
            await press(pilot, ["x", "x"])
            await seen(app, "2 are selected")
            await press(pilot, ["a"])
            await seen(app, "Which act?")
            await press(pilot, ["c"])
            await seen(app, "2 runs match: 2 can be cancelled.")
            await press(pilot, ["enter"])
            await seen(app, "say why")
            await press(pilot, [*"twice", "enter"])
            await seen(app, "2 of 2 cancelled")
            await engine.settle()
            statuses = [await engine.get(f"order-{n}").status() for n in range(3)]
            assert statuses.count("cancelled") == 2
            assert statuses[0] != "cancelled"


async def test_a_message_is_sent_and_bad_json_is_refused():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        run = await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-1")
            await press(pilot, ["enter"])
            await seen(app, "1 of 1 steps")
            await press(pilot, ["s", *"{bad", "enter"])
            await seen(app, "is no JSON")
            await press(pilot, [*["backspace"] * 4, *"7", "enter"])
            await seen(app, "sent approved to order-1")
            assert await run.result() == 7


async def test_no_control_sequence_of_a_text_reaches_the_terminal():
    """FACES 10.14: what users' code says is shown as text, everywhere, and obeyed nowhere."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        with pytest.raises(Exception, match="503"):
            await engine.execute(failing, HOSTILE, id="bad", attributes={"note": HOSTILE})
        async with screen(engine, size=(200, 40)) as (app, pilot):
            shown = [await seen(app, "\\x1b[31mred")]
            await press(pilot, ["enter"])
            shown.append(await seen(app, "✗ carry"))
            for _ in range(5):
                await press(pilot, ["tab"])
                await look(app)
                shown.append(picture(app))
            await press(pilot, ["g", "l"])
            shown.append(await seen(app, "ConnectionError"))
            for each in shown:
                assert all(letter.isprintable() or letter == "\n" for letter in each)
            assert "[bold]to[/bold]" in shown[1]


async def test_a_house_that_goes_away_leaves_its_last_picture_and_comes_back_by_itself():
    """FACES 10.10: the last picture stays, it is said that it is old, and nothing has to be started again."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        away = False

        class Away(LocalDesk):
            async def heads(self, *args, **options):
                if away:
                    raise StoreUnreachable("the server went away")
                return await super().heads(*args, **options)

        opened = []

        @asynccontextmanager
        async def desk():
            opened.append(1)
            if away:
                raise StoreUnreachable(f"the server is not there{' any more' * 15}: start it, or name another by --url")
            yield Away(engine.store, engine=engine)

        async with screen(engine, look=desk) as (app, _):
            await seen(app, "order-1")
            away = True
            app.look_now()
            shown = await seen(app, "the server went away")
            assert "lost" in shown
            assert "order-1" in shown
            app.look_now()
            shown = await seen(app, "--url")
            assert "any more: start it, or name another by --url" in " ".join(shown.split()), "the way out is cut off"
            away = False
            await engine.start(order, "lamp", id="order-2")
            app.look_now()
            await seen(app, "live")
            assert "lost" not in await seen(app, "1 newer run")
            assert len(opened) == 3


async def test_newer_runs_are_counted_until_they_are_asked_for_and_a_filter_is_typed():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-1")
            await engine.start(family, id="large")
            await engine.settle()
            app.look_now()
            shown = await seen(app, "2 newer runs: n shows them")
            assert "large" not in shown
            await press(pilot, ["n"])
            await seen(app, "large")
            await press(pilot, ["/", *"statos:failed", "enter"])
            await seen(app, "did you mean status?")
            await press(pilot, ["/", *["backspace"] * 20, *"workflow:family", "enter"])
            await eventually(lambda: "order-1" not in picture(app) and "large" in picture(app))
            await press(pilot, ["c"])
            await seen(app, "copied: holdfast list workflow:family")
            await press(pilot, ["enter", "5"])
            await seen(app, "small")


async def test_an_empty_house_says_what_would_be_here():
    async with TestEngine(workflows=WORKFLOWS) as engine, screen(engine) as (app, pilot):
        await seen(app, "There are no runs yet")
        await press(pilot, ["enter", "p", "a", "x", "s", "j"])
        await press(pilot, ["g", "l"])
        await seen(app, "No dead letter is unseen")
        await press(pilot, ["g", "w"])
        await seen(app, "bodies running")
        for place, said in (
            ("s", "There is no schedule"),
            ("e", "No event is queued"),
            ("d", "no check before a deploy"),
        ):
            await press(pilot, ["g", place])
            await seen(app, said)
        await press(pilot, ["?"])
        await seen(app, "copy as a command")
        await press(pilot, ["escape", "escape"])
        await eventually(lambda: "copy as a command" not in picture(app))
        await press(pilot, ["q"])
        await eventually(lambda: not app.is_running)


@pytest.mark.parametrize(
    ("terminal", "words"), [("xterm", "holdfast top needs a terminal"), ("dumb", "holdfast top needs a terminal")]
)
def test_without_a_terminal_it_is_said_what_to_use(terminal, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", terminal)
    assert main(["top", "--url", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert words in capsys.readouterr().err


def test_without_its_packages_it_is_said_how_to_get_them(tmp_path):
    hide = "import sys; sys.modules['textual'] = None; from holdfast.cli.main import main; sys.exit(main(['top']))"
    told = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert told.returncode == 2
    assert 'pip install "holdfast[tui]"' in told.stderr
    assert "holdfast list, watch and tail work without" in told.stderr


async def test_a_look_costs_a_bounded_number_of_statements(tmp_path):
    """FACES 0.3 and 0.4: what is shown is looked at once a second, whatever there is, and counted every fifth time."""
    database = f"sqlite:///{tmp_path}/shop.db"
    async with TestEngine(database, workflows=WORKFLOWS) as engine:
        for n in range(60):
            await engine.start(order, "lamp", id=f"order-{n}")
        await engine.settle()
        store = open_store(database)
        await store.open(look_only=True)
        asked: list[str] = []

        def note(cursor, statement, bindings):
            asked.append(statement)
            return True

        @asynccontextmanager
        async def desk():
            yield LocalDesk(store)

        async def costs() -> list[int]:
            """Return what ten looks ask."""
            counted = []
            for _ in range(10):
                asked.clear()
                await look(app)
                counted.append(sum(not each.upper().startswith(("BEGIN", "COMMIT", "PRAGMA")) for each in asked))
            return counted

        store._connections.reader.exec_trace = note
        async with screen(engine, look=desk) as (app, pilot):
            await seen(app, "order-59")
            of_the_list = await costs()
            await press(pilot, ["enter"])
            await seen(app, "1 of 1 steps")
            of_a_run = await costs()
        await store.close()
        for counted in (of_the_list, of_a_run):
            assert 0 < min(counted) <= LOOK
            assert sorted(counted)[7] == min(counted), f"more than every fifth look counts: {counted}"
            assert max(counted) <= LOOK + COUNT


async def test_schedules_events_deploys_and_what_was_done_are_shown_by_the_keys_of_the_dashboard():
    """FACES 8: the same keys as in the browser; a schedule is paused and triggered from here."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.schedules.put("nightly", order, "lamp", cron="30 2 * * *", by="lena")
        await engine.start(order, "lamp", id="order-1")
        await engine.publish("parcel", {"id": 7}, by="kim")
        with pytest.raises(Exception, match="503"):
            await engine.execute(failing, "x", id="bad")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-1")
            await press(pilot, ["g", "o"])
            await eventually(lambda: "bad" in picture(app) and "order-1" not in picture(app))
            await press(pilot, ["g", "s"])
            await seen(app, "it has started no run yet")
            await press(pilot, ["p", *"late", "enter"])
            await seen(app, "nightly is paused")
            await seen(app, "‖ paused")
            await press(pilot, ["a", "t"])
            await seen(app, "holdfast schedules trigger nightly")
            await press(pilot, ["enter"])
            await seen(app, "is started")
            await press(pilot, ["g", "e"])
            await seen(app, "parcel")
            await press(pilot, ["j"])
            app.look_now()
            await seen(app, '{"id":7}')
            await press(pilot, ["g", "d"])
            await seen(app, "no check before a deploy is on record")
            assert order.fingerprint[:10] in picture(app)
            await press(pilot, ["enter"])
            await seen(app, "is:open")
            await press(pilot, ["g", "a"])
            await seen(app, "schedule.trigger")
            assert "schedule.pause" in picture(app)
            await seen(app, "late")
        done = [row.action for row in (await LocalDesk(engine.store).audit(actor="kim")).items]
        assert {"schedule.pause", "schedule.trigger"} <= {*done}


@pytest.mark.parametrize(("first", "field"), [("/", "#filter"), ("p", "#reason"), ("s", "#payload")])
async def test_what_is_typed_ahead_is_meant_for_the_field_that_a_key_opens(first, field):
    """On a slow line keys come together: none of a text is taken for an act."""
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(order, "lamp", id="order-1")
        await engine.settle()
        async with screen(engine) as (app, pilot):
            await seen(app, "order-1")
            for key in (first, *"gap"):
                app.post_message(events.Key(key, key))
            await pilot.pause()
            assert len(app.screen_stack) == (1 if first == "/" else 2)
            written = app.screen.query_one(field, Input).value
            assert written == "gap" if first == "/" else "gap".endswith(written)
            assert isinstance(app.view, RunList)
            if first == "/":
                await press(pilot, ["escape"])
                for key in ("/", "p", "enter"):
                    app.post_message(events.Key(key, None if key == "enter" else key))
                await seen(app, "No run fits p")
