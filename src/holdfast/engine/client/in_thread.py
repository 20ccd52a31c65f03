"""An engine for code that is not async: it lives on a thread of its own, and calls wait for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import HoldfastError

T = TypeVar("T")


class Opened(Protocol):
    """What can be opened and stopped."""

    async def open(self) -> None: ...

    async def stop(self) -> None: ...


E = TypeVar("E", bound=Opened)


class InThread(Generic[E]):
    """Runs an engine on a thread between entering and leaving; calling it awaits something there."""

    def __init__(self, engine: E) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Callable[[Coroutine[Any, Any, T]], T]:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="holdfast engine", daemon=True)
        self._thread.start()
        try:
            self(self._engine.open())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self(self._engine.stop())
        finally:
            self._close()

    def __call__(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the engine's thread and return its result."""
        if self._loop is None:
            coro.close()
            raise HoldfastError("the engine is not open here; use `with engine.in_thread() as call:`")
        if threading.current_thread() is self._thread:
            coro.close()
            raise HoldfastError("this is the engine's own thread, which would wait for itself: use await")
        try:
            coming = asyncio.run_coroutine_threadsafe(coro, self._loop)
        except RuntimeError:  # its loop was closed since it was looked at
            coro.close()
            raise HoldfastError("the engine was closed while this call was made") from None
        try:
            return coming.result()
        except concurrent.futures.CancelledError:
            if self._loop is None:
                raise HoldfastError("the engine was closed while this call was waiting") from None
            raise

    def _close(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.run_until_complete(_cancel_the_rest())  # what came after the others were cancelled
        loop.close()


async def _cancel_the_rest() -> None:
    """Cancel what other threads are still waiting for."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
