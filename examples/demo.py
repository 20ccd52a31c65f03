"""The demonstration: an order that survives kill -9, twice, and the proof that nothing recorded ran again.

    make demo      or      python examples/demo.py [--fast]

This process is the audience. The order runs in a second process, on an SQLite file in a temporary folder. That process
is killed inside a step, started again, killed during a durable sleep, and started again. Every step body writes down
when it begins and when it finishes, in a file that the engine knows nothing of; in the end that file is compared with
the run's history. The exit code is 0 only if they agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast import Context, Engine, Run, RunHandle, Status, step_context, workflow

RUN = "order-1001"
STEPS = ("reserve", "charge", "ship", "mail")
PACE = 0.2 if "--fast" in sys.argv else 1.0
COOLING_OFF = timedelta(seconds=4 if PACE == 1 else 3)
PATIENCE = 60.0


# The order: what a user of holdfast would write.


@dataclass
class Order:
    id: int
    item: str
    cents: int


@dataclass
class Shipped:
    payment: str
    parcel: str


async def reserve(order: Order) -> str:
    with effect():
        await asyncio.sleep(0.8 * PACE)
    return f"{order.item} reserved"


async def charge(order: Order) -> str:
    with effect():
        await asyncio.sleep(1.2 * PACE)
    return f"payment-{order.id}"


async def ship(order: Order) -> str:
    with effect():
        await asyncio.sleep(0.8 * PACE)
    return f"parcel-{order.id}"


async def mail(order: Order, parcel: str) -> None:
    with effect():
        await asyncio.sleep(0.5 * PACE)


@workflow(name="demo")
async def fulfil(ctx: Context, order: Order) -> Shipped:
    await ctx.step(reserve, order)
    payment = await ctx.step(charge, order)
    await ctx.sleep(COOLING_OFF)
    parcel = await ctx.step(ship, order)
    await ctx.step(mail, order, parcel)
    return Shipped(payment, parcel)


ORDER = Order(1001, "kettle", 4_900)
EXPECTED = Shipped("payment-1001", "parcel-1001")


async def work(folder: Path) -> None:
    """Start the order, or go on with it: the second process does nothing else."""
    async with Engine(str(folder / "shop.db"), workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, ORDER, id=RUN)
        await run.result()


# What the step bodies did, written down by themselves.


@contextmanager
def effect() -> Any:
    write_effect("begun")
    yield
    write_effect("finished")


def write_effect(what: str) -> None:
    """Append a line and wait until the disk has it."""
    step = step_context()
    line = {"step": step.step, "what": what, "attempt": step.attempt, "key": step.idempotency_key, "pid": os.getpid()}
    with open(os.environ["DEMO_EFFECTS"], "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


# The audience.


class Show:
    """The live timeline on the terminal."""

    def __init__(self) -> None:
        self._color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._plain = not (sys.stdout.encoding or "").lower().startswith("utf")
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        self._print(f"\n{self.paint(text, '1')}\n")

    def text(self, text: str = "") -> None:
        self._print(f"  {text}".rstrip())

    def line(self, mark: str, what: str, text: str, color: str = "") -> None:
        """Print a moment: when it was, a sign, the step or process, what happened."""
        at = self.paint(f"{time.monotonic() - self._began:5.1f} s", "2")
        self._print(f"  {at}  {self.paint(f'{self._sign(mark)} {what:<9}', color)} {text}")

    def verdict(self, good: bool, text: str) -> None:
        mark, color = ("✔", "32") if good else ("✘", "1;31")
        self._print(f"  {self.paint(self._sign(mark), color)} {text}")

    def paint(self, text: str, color: str) -> str:
        return f"\033[{color}m{text}\033[0m" if self._color and color else text

    def _sign(self, mark: str) -> str:
        return {"▶": ">", "✘": "X", "✔": "+", "·": "-", "↺": "=", "☾": "z"}.get(mark, mark) if self._plain else mark

    def _print(self, text: str) -> None:
        print(text, flush=True)


class Theatre:
    """The worker process, the file of effects and the run as this process sees them."""

    def __init__(self, folder: Path, show: Show, run: RunHandle[Any]) -> None:
        self.effects: list[dict[str, Any]] = []
        self._folder = folder
        self._show = show
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0
        self._deadline = time.monotonic() + PATIENCE

    def start(self) -> None:
        """Start the process that runs the order; it ends by itself when this one does, however this one ends."""
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(self._folder)]
        command += ["--fast"] if PACE < 1 else []
        environment = os.environ | {"DEMO_EFFECTS": str(self._folder / "effects.jsonl")}
        with open(self._folder / "worker.err", "ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # this very file
                command, env=environment, stdin=subprocess.PIPE, stdout=errors, stderr=errors, start_new_session=True
            )
        self._show.line("▶", "process", f"{self._process.pid} starts", "36")

    def kill(self, where: str) -> None:
        """End the process as a power cut would: no handler, no clean-up, no goodbye."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._show.line("✘", "kill -9", f"process {self._process.pid} dies {where}", "1;31")

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Follow the file of effects until something is true of it."""
        while True:
            ended = self._ended()
            self._follow()
            if condition():
                return
            self._check_patience(ended)
            await asyncio.sleep(0.02)

    async def until_run(self, condition: Callable[[Run], bool]) -> None:
        """Follow the file of effects until something is true of the run in the database."""
        while True:
            ended = self._ended()
            reached = condition(await self._run.describe())
            self._follow()
            if reached:
                return
            self._check_patience(ended)
            await asyncio.sleep(0.02)

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _check_patience(self, ended: bool) -> None:
        if ended:
            raise RuntimeError("the process that runs the order ended by itself")
        if time.monotonic() > self._deadline:
            raise RuntimeError(f"the demonstration did not end within {PATIENCE:g} s")

    def has(self, step: str, what: str, attempt: int) -> bool:
        return any((line["step"], line["what"], line["attempt"]) == (step, what, attempt) for line in self.effects)

    async def show_recorded(self) -> None:
        """Show what the next process finds in the database and will therefore not do again."""
        for fact in await self._run.history():
            if fact.kind == "step completed":
                self._show.line("↺", fact.path, "recorded: will be replayed, not run", "2")

    def _follow(self) -> None:
        path = self._folder / "effects.jsonl"
        text = path.read_bytes()[self._read :] if path.exists() else b""
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for each in text.splitlines():
            line = json.loads(each)
            self.effects.append(line)
            if line["what"] == "begun":
                again = f"runs, attempt {line['attempt']}"
                again += f" (same idempotency key: {line['key']})" if line["attempt"] > 1 else ""
                self._show.line("·", line["step"], again, "33" if line["attempt"] > 1 else "")
            else:
                self._show.line("✔", line["step"], "done", "32")

    def complaints(self) -> str:
        return (self._folder / "worker.err").read_text(errors="replace")


async def play(folder: Path, show: Show) -> bool:
    """Perform the whole piece; True if the proof holds."""
    async with Engine(str(folder / "shop.db"), workflows=[fulfil], run_workflows=False) as viewer:
        run = viewer.get(RUN, fulfil)
        theatre = Theatre(folder, show, run)
        try:
            return await perform(theatre, show, run)
        except RuntimeError as error:
            show.verdict(False, f"{error}\n{theatre.complaints()}")
            return False
        finally:
            theatre.close()


async def perform(theatre: Theatre, show: Show, run: RunHandle[Shipped]) -> bool:
    theatre.start()
    await theatre.until(lambda: theatre.has("charge", "begun", 1))
    await asyncio.sleep(0.6 * PACE)
    theatre.kill("inside the step charge")
    await asyncio.sleep(1.2 * PACE)

    theatre.start()
    await theatre.show_recorded()
    await theatre.until(lambda: theatre.has("charge", "finished", 2))
    await theatre.until_run(lambda found: found.status is Status.SUSPENDED and found.due_at is not None)
    wake_at = (await run.describe()).due_at
    assert wake_at is not None
    show.line("☾", "sleep", f"durable, until {wake_at.astimezone():%H:%M:%S}", "34")
    await asyncio.sleep(1.4 * PACE)
    theatre.kill("while the order sleeps")
    await asyncio.sleep(1.0 * PACE)

    back = datetime.now(wake_at.tzinfo)
    theatre.start()
    await theatre.show_recorded()
    left = (wake_at - datetime.now(wake_at.tzinfo)).total_seconds()
    show.line("☾", "sleep", f"goes on: {max(left, 0):.1f} s of {COOLING_OFF.total_seconds():g} s are left", "34")
    await theatre.until_run(lambda found: found.status.is_terminal)
    result = await run.result()
    show.line("✔", "order", f"completed: {result.payment}, {result.parcel}", "1;32")
    return await prove(theatre, show, run, result, back)


async def prove(theatre: Theatre, show: Show, run: RunHandle[Shipped], result: Shipped, back: datetime) -> bool:
    """Compare what the bodies wrote down with what the database recorded."""
    history = await run.history()

    def bodies(step: str, what: str) -> list[int]:
        return [line["attempt"] for line in theatre.effects if (line["step"], line["what"]) == (step, what)]

    def recorded(step: str) -> list[int]:
        return [fact.entry.attempt for fact in history if (fact.path, fact.kind) == (step, "step completed")]  # type: ignore[attr-defined]

    show.title("The proof: what the bodies wrote into a file, against the run's history")
    show.text(
        show.paint(f"{'step':<10}{'bodies begun':>14}{'bodies finished':>17}{'results recorded':>18}   attempts", "2")
    )
    for step in STEPS:
        begun, finished = bodies(step, "begun"), bodies(step, "finished")
        tries = ", ".join(map(str, begun))
        show.text(f"{step:<10}{len(begun):>14}{len(finished):>17}{len(recorded(step)):>18}   {tries}")
    slept = [fact.at for fact in history if fact.path == "sleep"]
    # Begun again by the last process it would have ended no earlier than a whole sleep after that process came back.
    slept_once = len(slept) == 2 and slept[0] + COOLING_OFF <= slept[1] < back + COOLING_OFF
    keys = {line["key"] for line in theatre.effects if line["step"] == "charge"}
    checks = {
        "no step ran again once its result was recorded": all(
            len(bodies(step, "finished")) == len(recorded(step)) == 1 for step in STEPS
        ),
        "the step that was killed, and only that one, ran twice, as attempts 1 and 2": bodies("charge", "begun")
        == [1, 2]
        and all(bodies(step, "begun") == [1] for step in STEPS if step != "charge"),
        "its crash is in the history, and both attempts had the same idempotency key": len(keys) == 1
        and any((fact.path, fact.kind) == ("charge", "attempt lost") for fact in history),
        f"the sleep of {COOLING_OFF.total_seconds():g} s went on through the kill, not begun again": slept_once,
        f"the result is right: {asdict(result)}": result == EXPECTED,
    }
    show.text()
    for text, good in checks.items():
        show.verdict(good, text)
    show.text()
    return all(checks.values())


def end_with_parent() -> None:
    """End the worker process when the pipe from its parent closes, so that nothing is ever left running."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    parser = argparse.ArgumentParser(description="An order that survives kill -9, and the proof.")
    parser.add_argument("--fast", action="store_true", help="with shorter pauses")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        end_with_parent()
        asyncio.run(work(options.worker))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    show = Show()
    show.title("holdfast: an order that survives kill -9")
    show.text(
        "Four steps and a durable sleep, recorded in one SQLite file. The process that runs them is killed twice."
    )
    show.text()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            return 0 if asyncio.run(play(Path(folder), show)) else 1
    except KeyboardInterrupt:
        show.text("interrupted; nothing is left running")
        return 130


if __name__ == "__main__":
    sys.exit(main())
