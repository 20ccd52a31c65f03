"""What befalls a world of many runs: engines stop and die, and people act on every run they find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
from tests.simulation.many_books import Books
from tests.simulation.many_workflows import CLERK, COLLECTORS, NAMES, make_plan, make_workflows, milliseconds
from tests.simulation.world import Plan, TroubledStore

from holdfast import Engine, Event, Retention
from holdfast.engine.client.operate import Action
from holdfast.errors import HoldfastError, StoreError

MAX_KILLS = 2  # a third loss of one step convicts it, as it should
EVENTS = [Event(name="news", consume_on_read=False), Event(name="rare", on_target_ended="dead_letter")]
UNIQUE = ["alone-1", "alone-2"]
TICKS = 12
_RECEIVED = """
    CREATE TABLE IF NOT EXISTS received (run, n, payload);
    CREATE TRIGGER IF NOT EXISTS receiving AFTER INSERT ON inbox BEGIN
        INSERT INTO received VALUES (new.run, new.n, new.payload);
    END;
    CREATE TABLE IF NOT EXISTS started (key, id);
    CREATE TRIGGER IF NOT EXISTS starting AFTER INSERT ON runs BEGIN
        INSERT INTO started VALUES (new.key, new.id);
    END
"""
"""Keeps what the store forgets: what was put into inboxes, and the ids of runs that were purged."""


class Nemesis:
    """Engines on one file, what befalls them, and what people do with them."""

    def __init__(self, books: Books, path: Path) -> None:
        draw = books.random
        self.books = books
        self.path = path
        self.workflows = make_workflows(books)
        self.engines: list[Engine] = []
        self.fading: list[asyncio.Task[None]] = []
        self.kills = 0
        self.short = draw.random() < 0.3
        self.purging = draw.random() < 0.3
        self.always_evicted = draw.random() < 0.4
        self.servants = [*COLLECTORS, CLERK]
        self.plans: dict[str, Plan] = {}
        self.scheduled: dict[str, tuple[datetime, timedelta]] = {}
        books.orderly = books.orderly and not self.short

    async def start_engine(self) -> None:
        draw = self.books.random
        age = milliseconds(draw.choice([0, 20, 100]))
        retention = Retention(completed=age, failed=None, cancelled=age, every=milliseconds(20))
        engine = Engine(
            store=TroubledStore(self.path, self.books),
            workflows=self.workflows,
            events=EVENTS,
            retention=retention if self.purging else None,
            max_resident=0 if self.always_evicted else draw.choice([0, 1, 3, 10_000]),
            lease=timedelta(seconds=0.15 if self.short and not self.books.calm else 30),
            cancel_grace=milliseconds(draw.choice([0, 10, 60_000])),
            stop_grace=milliseconds(draw.choice([0, 0, 5, 50])),
            development=False,
        )
        try:
            await engine.open()
        except StoreError:
            return
        if not self.engines:
            database = apsw.Connection(str(self.path))
            database.set_busy_timeout(5_000)
            database.execute(_RECEIVED)
            database.close()
        self.engines.append(engine)

    async def stop_engine(self) -> None:
        if self.engines:
            await self.engines.pop(self.books.random.randrange(len(self.engines))).stop()

    async def kill_engine(self) -> None:
        if self.kills < MAX_KILLS and self.engines:
            self.kills += 1
            self.books.orderly = False
            engine = self.engines.pop(self.books.random.randrange(len(self.engines)))
            engine.store.dead = True  # type: ignore[attr-defined]  # ours
            engine.store._connections._release_locks()  # type: ignore[attr-defined]  # as the kernel would
            self.fading.append(asyncio.ensure_future(engine.stop()))

    async def act(self) -> None:
        """Do something to somebody, or a few things at once."""
        draw = self.books.random
        if not self.engines or draw.random() < 0.1:
            await self.start_engine()
        await asyncio.sleep(draw.random() * 0.02)
        chance = draw.random()
        if chance < 0.08:
            await self.stop_engine()
        elif chance < 0.11:
            await self.kill_engine()
        elif self.engines:
            await self.attempt(self.hire)
            acts = [self.start, self.talk, self.talk, self.meddle, self.meddle, self.reopen]
            await asyncio.gather(*(self.attempt(each) for each in draw.choices(acts, k=draw.randint(1, 3))))

    async def attempt(self, act: Callable[[Engine], Any]) -> None:
        try:
            await act(self.books.random.choice(self.engines))
        except (HoldfastError, TimeoutError):
            self.books.faults["refused or failed act"] += 1

    async def hire(self, engine: Engine) -> None:
        """Start those who serve the others."""
        while self.servants:
            definition = self.workflows[2 if self.servants[0] == CLERK else 1]
            await engine.start(definition, 0, id=self.servants[0])
            del self.servants[0]

    async def anybody(self, engine: Engine) -> str:
        """Return the id of some run, children more often than not."""
        draw = self.books.random
        if draw.random() < 0.2:
            return draw.choice([*COLLECTORS, CLERK])
        found = [run.id for run in await engine.runs(limit=1000, workflow="saga")]
        return draw.choice(found or COLLECTORS)

    async def start(self, engine: Engine) -> None:
        draw = self.books.random
        run_id = f"run-{len(self.plans)}"
        if self.plans and draw.random() < 0.2:
            run_id = draw.choice([*self.plans])
        plan = self.plans.setdefault(run_id, make_plan(self.books))
        options: dict[str, Any] = {}
        if draw.random() < 0.3:
            options = {"unique_key": draw.choice(UNIQUE), "on_conflict": draw.choice(["raise", "return"])}
        if draw.random() < 0.3:
            options["delay"] = milliseconds(draw.choice([1, 20, 100]))
        if draw.random() < 0.1:
            options["timeout"] = milliseconds(draw.choice([5, 50]))
        await engine.start(self.workflows[0], plan, [], id=run_id, priority=draw.randint(-2, 2), **options)

    async def talk(self, engine: Engine) -> None:
        """Publish, send or ask."""
        draw, token = self.books.random, self.books.token()
        match draw.randint(0, 5):
            case 0:
                await engine.get(draw.choice(COLLECTORS)).send("word", token, id=token)
            case 1:
                await engine.get(await self.anybody(engine)).send("rare", token, dead_letter=draw.random() < 0.5)
            case 2:
                reply = await engine.get(CLERK).ask("ask", token, timeout=milliseconds(30))
                if reply != f"re {token}":
                    self.books.wrong.append(f"asked {token}, answered {reply!r}")
            case _:
                name, once = draw.choice(NAMES), draw.random() < 0.5
                for _ in range(draw.randint(1, 2)):
                    await engine.publish(name, token, id=token if once else None)

    async def meddle(self, engine: Engine) -> None:
        """Do to an open run what people do."""
        draw, run_id = self.books.random, await self.anybody(engine)
        if self.purging and run_id in (*COLLECTORS, CLERK):
            return  # a servant that was cancelled would be purged with what it was sent
        match draw.randint(0, 11):
            case 0 | 1:
                await engine.get(run_id).pause(duration=draw.choice([None, milliseconds(1), milliseconds(30)]))
            case 2 | 3:
                await engine.get(run_id).resume()
            case 4:
                await engine.get(run_id).cancel()
            case 5:
                await engine.get(run_id).cancel(compensate=True)
            case 6:
                await engine.get(run_id).terminate()
            case 7:
                await engine.get(run_id).set_attributes({"seen": True})
            case 8:
                actions: list[Action] = ["pause", "resume", "retry"]
                action = draw.choice(actions)
                found = await engine.bulk(action, workflow="saga", limit=5, dry_run=True)
                await engine.bulk(action, workflow="saga", limit=5, expect=len(found.matched))
            case 9:
                listed = await engine.dead_letters.replay_all(limit=5, dry_run=True)
                await engine.dead_letters.replay_all(limit=5, expect=len(listed.matched))
            case 10:
                await engine.recover()
            case _:
                await self.schedule(engine)

    async def schedule(self, engine: Engine) -> None:
        draw = self.books.random
        if len(self.scheduled) < 2:
            name, every = f"tick-{len(self.scheduled)}", milliseconds(draw.choice([7, 20]))
            first = datetime.now(UTC) + milliseconds(10)
            self.scheduled[name] = (first, every)
        name = draw.choice([*self.scheduled])
        first, every = self.scheduled[name]
        await engine.schedules.put(
            name, "ticked", every=every, starting=first, until=first + every * TICKS, catch_up="all", overlap="allow"
        )

    async def reopen(self, engine: Engine) -> None:
        """Let an ended run go on, or replay a letter."""
        draw = self.books.random
        letters = await engine.dead_letters.list(limit=1000)
        if letters and draw.random() < 0.5:
            letter = draw.choice(letters)
            elsewhere = {"to": draw.choice(COLLECTORS)} if draw.random() < 0.3 else {"broadcast": draw.random() < 0.5}
            await engine.dead_letters.replay(letter.id, **(elsewhere if letter.kind == "event" else {}))
            return
        ended = [run for run in await engine.runs(limit=1000, workflow="saga") if run.status.is_terminal]
        if not ended:
            return
        run = draw.choice(ended)
        match draw.randint(0, 3):
            case 0 | 1:
                await (engine.get(run.id).retry() if run.status == "failed" else engine.get(run.id).resume())
            case 2:
                await engine.get(run.id).rerun()
            case _:
                steps = [step.path for step in await engine.get(run.id).steps()]
                await engine.get(run.id).rerun(from_step=draw.choice(steps) if steps else None)
