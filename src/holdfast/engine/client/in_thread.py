"""An engine for code that is not async: it runs on its own thread, and calls wait for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

from holdfast.engine.client.link import inherited
from holdfast.errors import HoldfastError

T = TypeVar("T")


class Opened(Protocol):
    """What can be opened and stopped."""

    async def open(self) -> None: ...

    async def stop(self) -> None: ...


E = TypeVar("E", bound=Opened)


class InThread(Generic[E]):
    """Runs an engine on a thread while it is open; calling it awaits something there.

    Open it with `with`, or with `open` and `close` where a server says when: after it has forked, before it exits.
    """

    def __init__(self, engine: E) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the engine, on a thread of this process."""
        if self._loop is not None:
            raise HoldfastError("the engine is open already") if os.getpid() == self._process else inherited()
        self._process = os.getpid()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="holdfast engine", daemon=True)
        self._thread.start()
        try:
            self(self._engine.open())
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Stop the engine in order, and its thread; nothing where it is not open."""
        if self._loop is None or os.getpid() != self._process:
            return  # in a child that was forked since, too: the engine goes on in its parent
        try:
            self(self._engine.stop())
        finally:
            self._close()

    def __call__(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the engine's thread and return its result.

        Raises:
            HoldfastError: the engine is not open, or this is its own thread.
            StoreClosed: the process was forked since the engine was opened: open one in each process.
        """
        if self._loop is None:
            coro.close()
            raise HoldfastError("the engine is not open here; use `with engine.in_thread() as call:`")
        if os.getpid() != self._process:
            coro.close()
            raise inherited()  # a fork leaves threads behind: there is none here that would ever answer
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
