"""Faults for tests: a real store that fails, loses an answer, waits or dies when it is told to, and counts how often.

A test that injects a fault proves something only if the fault happened: each counts itself in `injected`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from holdfast.contract.operations import Operation
from holdfast.contract.store import Store
from holdfast.errors import StoreError, StoreFull

Moment = Literal["before", "after"]
Only = type | tuple[type, ...] | Callable[..., bool] | None

_WRITING = (
    "apply",
    "claim",
    "claim_waiting",
    "claim_tasks",
    "transact",
    "enclose",
    "relay",
    "join",
    "leave",
    "take_over",
    "renew",
    "add_figures",
)
_DELAYED = 0.002


class Fault:
    """Something that happens at calls of one method of a store; made by the methods of Faults."""

    def __init__(
        self,
        at: str,
        moment: Moment,
        act: Callable[[], Any],
        *,
        only: Only = None,
        skip: int = 0,
        every: int = 1,
        times: int | None = 1,
    ) -> None:
        self.at = at
        self.moment = moment
        self.injected: int = 0
        """How often it happened."""
        self._act = act
        self._only = only
        self._skip = skip
        self._every = every
        self._times = times

    @property
    def over(self) -> bool:
        """Whether it does not happen any more."""
        return self._times is not None and self._times <= 0

    def heal(self) -> None:
        """Let it not happen any more."""
        self._times = 0

    async def happened(self, times: int = 1) -> None:
        """Wait until it has happened so often."""
        while self.injected < times:  # noqa: ASYNC110  # it may happen in a thread
            await asyncio.sleep(_DELAYED)

    def _meets(self, arguments: Sequence[Any], answer: Any) -> bool:
        if self.over or not self._fits(arguments, answer):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self._skip = self._every - 1
        if self._times is not None:
            self._times -= 1
        self.injected += 1
        return True

    def _fits(self, arguments: Sequence[Any], answer: Any) -> bool:
        if self._only is None:
            # An answer that is empty is not missed.
            return self.moment == "before" or answer is None or bool(answer)
        if isinstance(self._only, type | tuple):
            return any(isinstance(operation, self._only) for operation in arguments[0])
        return self._only(*arguments) if self.moment == "before" else self._only(answer)


class Hold(Fault):
    """A call that waits until it is let go."""

    def __init__(self, at: str, moment: Moment, *, only: Only, skip: int) -> None:
        self._free = asyncio.Event()
        self._error: Exception | None = None
        super().__init__(at, moment, self._wait, only=only, skip=skip)

    def release(self, error: Exception | None = None) -> None:
        """Let the call go on, or fail."""
        self._error = error
        self._free.set()

    def heal(self) -> None:
        super().heal()
        self.release()

    async def _wait(self) -> None:
        await self._free.wait()
        if self._error is not None:
            raise self._error


class Faults:
    """The faults of one store. It stays the store it is; its calls pass by here.

        store = SQLiteStore("test.db")
        faults = Faults(store)
        async with TestEngine(store=store, workflows=[order]) as engine:
            fault = faults.lose_answer(only=StartRun)
            ...
            assert fault.injected == 1

    Every method names the method of the store `at` which it happens (`apply`, which commits, unless said otherwise);
    `only` for what: an operation, or several, one of which must be in the batch, or a function that is given the
    arguments (of what happens before the call) or the answer (of what happens after it); after how many such calls
    (`skip`), at each of them or each second, third (`every`), and how often (`times`, None until it is healed).
    """

    def __init__(self, store: Store) -> None:
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.batches: list[list[Operation]] = []
        """What was committed, batch by batch."""
        self.dead: bool = False
        """Whether nothing reaches the database any more."""
        self._faults: list[Fault] = []
        self._watched: dict[str, list[tuple[Any, ...]]] = {}
        self._inside: Sequence[Operation] | None = None
        for name, method in inspect.getmembers(Store, inspect.isfunction):
            if not name.startswith("_") and name not in ("open", "close"):
                setattr(store, name, self._passing(name, method, getattr(store, name)))

    @property
    def injected(self) -> int:
        """How many faults happened."""
        return sum(fault.injected for fault in self._faults)

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return len(self.batches)

    def fail(
        self,
        times: int | None = 1,
        *,
        at: str = "apply",
        only: Only = None,
        skip: int = 0,
        every: int = 1,
        error: Exception | None = None,
    ) -> Fault:
        """Raise before anything is done; by default a StoreError."""
        return self.call(_raising(error, f"{at} fails"), times, at=at, only=only, skip=skip, every=every)

    def lose_answer(
        self,
        times: int | None = 1,
        *,
        at: str = "apply",
        only: Only = None,
        skip: int = 0,
        every: int = 1,
        error: Exception | None = None,
    ) -> Fault:
        """Raise after it was done: the caller cannot know whether it was."""
        raising = _raising(error, f"the answer of {at} is lost: its outcome is unknown")
        return self.call(raising, times, at=at, moment="after", only=only, skip=skip, every=every)

    def fill(self) -> Fault:
        """Let the disk be full until this is healed: nothing is committed."""
        return self.fail(None, error=StoreFull("no space left on device"))

    def hold(self, *, at: str = "apply", moment: Moment = "before", only: Only = None, skip: int = 0) -> Hold:
        """Let one call wait until it is released; await `happened()` to know that it waits."""
        hold = Hold(at, moment, only=only, skip=skip)
        self._faults.append(hold)
        return hold

    def call(
        self,
        act: Callable[[], Any],
        times: int | None = 1,
        *,
        at: str = "apply",
        moment: Moment = "before",
        only: Only = None,
        skip: int = 0,
        every: int = 1,
    ) -> Fault:
        """Do something just before or after a call; what it returns is awaited if that can be awaited."""
        fault = Fault(at, moment, act, only=only, skip=skip, every=every, times=times)
        self._faults.append(fault)
        return fault

    def watch(self, at: str) -> list[tuple[Any, ...]]:
        """Return a list to which the arguments of every further call are added."""
        return self._watched.setdefault(at, [])

    def die(self, commits: int | None = None, moment: Moment = "before") -> None:
        """Let nothing reach the database any more, as if the process were killed: now, or at its n-th commit from now.

        After a commit, its caller is not told.
        """
        if commits is None:
            self.dead = True
        else:
            self.call(self._end, moment=moment, skip=commits - 1)

    def heal(self) -> None:
        """Let nothing more happen; what died stays dead."""
        for fault in self._faults:
            fault.heal()

    def _end(self) -> None:
        self.dead = True
        self._breathe()

    def _breathe(self) -> None:
        if self.dead:
            raise StoreError("this process is dead")

    def _passing(self, name: str, declared: Any, method: Callable[..., Any]) -> Callable[..., Any]:
        if name == "apply_now":
            return self._apply_now(method)
        return self._waiting(name, method) if inspect.iscoroutinefunction(declared) else self._plain(name, method)

    def _waiting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            for act in self._due(name, "before", arguments, None):
                if inspect.isawaitable(waiting := act()):
                    await waiting
            if name == "apply":
                self._inside = arguments[0]
            answer = await method(*arguments, **options)
            self._note(name, arguments)
            for act in self._due(name, "after", arguments, answer):
                if inspect.isawaitable(waiting := act()):
                    await waiting
            return answer

        return call

    def _plain(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            for act in self._due(name, "before", arguments, None):
                act()
            answer = method(*arguments, **options)
            for act in self._due(name, "after", arguments, answer):
                act()
            return answer

        return call

    def _apply_now(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def apply_now(operations: Sequence[Operation]) -> Any:
            if operations is self._inside:  # by way of apply, which is watched
                self._inside = None
                return method(operations)
            if self.dead or any(fault.at == "apply" and not fault.over for fault in self._faults):
                return None  # then the commit takes the way that may wait
            outcomes = method(operations)
            if outcomes is not None:
                self._note("apply", (operations,))
            return outcomes

        return apply_now

    def _due(self, name: str, moment: Moment, arguments: Sequence[Any], answer: Any) -> list[Callable[[], Any]]:
        if moment == "before":
            self.calls[name] += 1
            if name in self._watched:
                self._watched[name].append(tuple(arguments))
        if name in _WRITING:
            self._breathe()
        met = [fault for fault in self._faults if fault.at == name and fault.moment == moment]
        return [fault._act for fault in met if fault._meets(arguments, answer)]

    def _note(self, name: str, arguments: Sequence[Any]) -> None:
        if name == "apply":
            self.batches.append(list(arguments[0]))


def _raising(error: Exception | None, what: str) -> Callable[[], None]:
    def fail() -> None:
        raise error if error is not None else StoreError(what)

    return fail
