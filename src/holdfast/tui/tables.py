"""Dead letters by their cause, and who advances what: workers, queues and limits."""

from __future__ import annotations

from datetime import tzinfo

from rich.text import Text

from holdfast.looking.acting.limits import LimitView
from holdfast.looking.desk import Desk
from holdfast.looking.views import LetterGroup, LetterView, QueueView, WorkerView
from holdfast.tui.drawing.lines import Row, clock, folded, joined, lasting, said, status
from holdfast.tui.house import House
from holdfast.tui.run import RunScreen
from holdfast.tui.view import Target, View

_LETTERS = 200


class Letters(View):
    """Dead letters that no person has seen: the causes first, then the newest letters."""

    title = "Dead letters"
    titles = ("WHAT", "AT", "WORKFLOW", "STEP", "ATTEMPTS", "WHY IT WAS GIVEN UP")
    spare = (4, 1, 2)
    hint = "enter open run  a replay, acknowledge, remove  y id  c copy  g go  ? keys"

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.groups: list[LetterGroup] = []
        self.letters: list[LetterView] = []
        self._known = False

    async def look(self, house: House) -> None:
        async def ask(desk: Desk) -> None:
            self.groups = await desk.letter_groups()
            self.letters = await desk.letters(limit=_LETTERS)

        await house.ask(ask)
        self._known = True
        self.as_of = max([self.as_of, *(letter.at for letter in self.letters)])

    def above(self, width: int) -> list[Text]:
        total = sum(group.count for group in self.groups)
        letters = "1 dead letter" if total == 1 else f"{total:,} dead letters"
        causes = "1 cause" if len(self.groups) == 1 else f"{len(self.groups):,} causes"
        return [said(f"{letters} of {causes}", "bold")] if total else []

    def rows(self, width: int) -> list[Row]:
        rows = [
            Row(
                f"group {group.workflow}\n{group.step}\n{group.error}",
                (
                    said(f"{group.count:,} letters", "bold red"),
                    clock(group.last, self.as_of, self.zone),
                    said(group.workflow, "bold"),
                    said(group.step, "bold"),
                    said(""),
                    said(f"{group.error.rpartition('.')[2]}, for {lasting(group.first, group.last) or 'a moment'}"),
                ),
            )
            for group in self.groups
            if group.count > 1
        ]
        return [*rows, *(self._letter(letter) for letter in self.letters)]

    def _letter(self, letter: LetterView) -> Row:
        error = letter.error
        return Row(
            letter.id,
            (
                said(f"{letter.run or letter.name}"),
                clock(letter.at, self.as_of, self.zone),
                said(letter.workflow),
                said(letter.step or f"message {letter.name}"),
                said(str(letter.attempts) if letter.attempts else ""),
                said(f"{error.type.rpartition('.')[2]}: {error.message}" if error is not None else letter.kind),
            ),
        )

    def _under_cursor(self) -> list[LetterView]:
        cursor = self.cursor or ""
        if cursor.startswith("group "):
            workflow, step, error = cursor.removeprefix("group ").split("\n")
            return [
                letter
                for letter in self.letters
                if (letter.workflow, letter.step, letter.error.type if letter.error else "") == (workflow, step, error)
            ]
        return [letter for letter in self.letters if letter.id == cursor]

    def below(self, width: int) -> list[Text]:
        found = self._under_cursor()
        if not found or found[0].error is None:
            return []
        return folded(f"{found[0].error.type}: {found[0].error.message}", width, 3)

    def empty(self) -> str:
        return "No dead letter is unseen: no work was given up on." if self._known else "looking ..."

    def opened(self) -> View | None:
        found = self._under_cursor()
        return RunScreen(self.zone, found[0].run) if found and found[0].run else None

    def target(self) -> Target:
        return Target(letters=tuple(letter.id for letter in self._under_cursor()))

    def command(self) -> str:
        return "holdfast letters list"

    def to_copy(self) -> str:
        found = self._under_cursor()
        return found[0].id if found else ""


class Workers(View):
    """Workers, queues and limits."""

    title = "Workers"
    titles = ("STATE", "WHAT", "NAME", "LOAD", "MORE")
    spare = (1,)
    wants = 20
    hint = "p pause or resume a queue or limit  y id  c copy  g go  ? keys  q quit"

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.workers: list[WorkerView] = []
        self.queues: list[QueueView] = []
        self.limits: list[LimitView] = []
        self._known = False

    async def look(self, house: House) -> None:
        async def ask(desk: Desk) -> None:
            self.workers = await desk.workers()
            self.queues = await desk.queues()
            self.limits = await desk.limits()

        await house.ask(ask)
        self._known = True
        self.as_of = max([self.as_of, *(worker.heard_at for worker in self.workers)])

    def above(self, width: int) -> list[Text]:
        alive = [worker for worker in self.workers if worker.state == "alive"]
        bodies = sum(worker.steps for worker in alive)
        return [said(f"{len(alive):,} alive, {bodies:,} bodies running", "bold")] if self._known else []

    def rows(self, width: int) -> list[Row]:
        served = {queue for worker in self.workers if worker.state == "alive" for queue in worker.queues}
        rows = [self._worker(worker) for worker in self.workers]
        for queue in self.queues:
            state = _state(queue.paused, queue.queue in served, "unserved")
            more = joined(
                f"activity {queue.activity}",
                joined("oldest since ", clock(queue.oldest, self.as_of, self.zone), gap="") if queue.oldest else "",
            )
            load = said(f"{queue.waiting:,} wait, {queue.taken:,} taken")
            rows.append(
                Row(f"queue {queue.queue}\n{queue.activity}", (state, said("queue"), said(queue.queue), load, more))
            )
        for limit in self.limits:
            more = joined(limit.allows, "overridden" if limit.overridden else "", _turn(limit, self))
            load = said(f"{limit.used:,} used, {limit.waiting:,} wait")
            state = _state(limit.paused, True, "")
            rows.append(Row(f"limit {limit.name}", (state, said("limit"), said(limit.name), load, more)))
        return rows

    def _worker(self, worker: WorkerView) -> Row:
        most = f" of {worker.max_steps:,}" if worker.max_steps else ""
        return Row(
            f"worker {worker.id}",
            (
                status(worker.state),
                said("worker"),
                said(worker.id),
                said(f"{worker.steps:,}{most} steps"),
                joined(
                    f"{worker.runs:,} runs",
                    f"{worker.host}:{worker.pid}",
                    joined("heard ", clock(worker.heard_at, self.as_of, self.zone), gap=""),
                    f"queues {', '.join(worker.queues)}" if worker.queues else "",
                    f"{len(worker.workflows)} workflows",
                ),
            ),
            worker.state == "dead",
        )

    def below(self, width: int) -> list[Text]:
        worker = next((worker for worker in self.workers if f"worker {worker.id}" == self.cursor), None)
        if worker is not None:
            served = ", ".join(f"{name} v{version}" for name, version in worker.workflows.items())
            about = f"holdfast {worker.holdfast}, Python {worker.python}: {served[:300]}"
            bodies = [
                said(f"  {body.run}  {body.step}  attempt {body.attempt}  {lasting(body.since, self.as_of)}")
                for body in worker.bodies[:3]
            ]
            return [*folded(about, width, 2), *bodies]
        limit = next((limit for limit in self.limits if f"limit {limit.name}" == self.cursor), None)
        keys = limit.keys[:4] if limit is not None else []
        return [said(f"  key {key.key or '(none)'}: {key.used:,} used, {key.waiting:,} wait") for key in keys]

    def held(self) -> tuple[str, str, bool] | None:
        for queue in self.queues:
            if f"queue {queue.queue}\n{queue.activity}" == self.cursor:
                return "queue", queue.queue, queue.paused
        for limit in self.limits:
            if f"limit {limit.name}" == self.cursor:
                return "limit", limit.name, limit.paused
        return None

    def empty(self) -> str:
        if not self._known:
            return "looking ..."
        return (
            "No worker is there, nothing waits in a queue, and there is no limit.\n"
            "A process with async with Engine(database, workflows=[...]) is a worker."
        )

    def command(self) -> str:
        word = (self.cursor or "worker").partition(" ")[0]
        return {"queue": "holdfast queues", "limit": "holdfast limits list"}.get(word, "holdfast workers")

    def to_copy(self) -> str:
        return (self.cursor or "").partition(" ")[2].partition("\n")[0]


def _state(paused: bool, served: bool, otherwise: str) -> Text:
    if paused:
        return status("paused")
    return said("· open") if served else said(f"■ {otherwise}", "bold red")


def _turn(limit: LimitView, view: View) -> Text:
    return joined("next ", clock(limit.next_turn, view.as_of, view.zone), gap="") if limit.next_turn else said("")
