"""The pool that sync bodies run in."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

from holdfast.bodies.threads import ThreadPool

WAIT = 5


class Reports:
    """Collects what the pool reports."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, BaseException | None]] = []
        self.arrived = threading.Semaphore(0)

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.seen.append((result, error))
        self.arrived.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=WAIT)


def submit(pool: ThreadPool, function: Any, reports: Reports) -> Any:
    return pool.submit(function, contextvars.copy_context(), reports)


def test_results_and_errors_are_reported():
    pool, reports = ThreadPool(), Reports()
    submit(pool, lambda: 7, reports)
    reports.wait()
    submit(pool, lambda: 1 / 0, reports)
    reports.wait()
    assert reports.seen[0] == (7, None)
    assert isinstance(reports.seen[1][1], ZeroDivisionError)
    pool.close()


def test_even_an_exit_is_reported_and_the_thread_lives_on():
    """GUARANTEES 4 row 15: sys.exit in a thread."""
    pool, reports = ThreadPool(), Reports()

    def leave() -> None:
        raise SystemExit(3)

    submit(pool, leave, reports)
    reports.wait()
    assert isinstance(reports.seen[0][1], SystemExit)
    submit(pool, lambda: "next", reports)
    reports.wait()
    assert reports.seen[1] == ("next", None)
    pool.close()


def test_an_idle_thread_is_used_again():
    pool, reports = ThreadPool(), Reports()
    for _ in range(50):
        submit(pool, threading.get_ident, reports)
        reports.wait()
    # A thread reports just before it becomes idle, so now and then a second one is started.
    assert len({ident for ident, _ in reports.seen}) < 25
    pool.close()


def test_threads_are_daemons_that_end_with_the_pool():
    pool, reports = ThreadPool(), Reports()
    submit(pool, threading.current_thread, reports)
    reports.wait()
    thread = reports.seen[0][0]
    assert thread.daemon
    assert thread is not threading.current_thread()
    pool.close()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_an_abandoned_thread_is_counted_until_it_comes_back():
    """GUARANTEES 2 (thread outlives timeout)"""
    returned = threading.Semaphore(0)
    pool, reports = ThreadPool(returned.release), Reports()
    go, begun = threading.Event(), threading.Event()

    def hang() -> str:
        begun.set()
        go.wait(WAIT)
        return "late"

    job = submit(pool, hang, reports)
    begun.wait(WAIT)
    pool.abandon(job)
    pool.abandon(job)
    assert pool.abandoned == 1
    submit(pool, lambda: "meanwhile", reports)
    reports.wait()
    assert reports.seen == [("meanwhile", None)]
    go.set()
    assert returned.acquire(timeout=WAIT)
    assert pool.abandoned == 0
    assert reports.seen[1] == ("late", None)
    pool.close()


def test_a_job_that_has_ended_cannot_be_abandoned():
    pool, reports = ThreadPool(), Reports()
    job = submit(pool, lambda: 1, reports)
    reports.wait()
    pool.abandon(job)
    assert pool.abandoned == 0
    pool.close()


def test_many_jobs_at_once_lose_nothing():
    """Submitted from several threads, abandoned at random moments: the count comes back to zero."""
    pool, reports = ThreadPool(), Reports()

    def burst() -> None:
        for number in range(100):
            job = submit(pool, lambda number=number: number, reports)
            if number % 3 == 0:
                pool.abandon(job)

    senders = [threading.Thread(target=burst) for _ in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    # A job that was given up may still report, or never run; one that was not always reports.
    while len([result for result, _ in reports.seen if result % 3]) < 4 * 66:
        reports.wait()
    deadline = time.monotonic() + WAIT
    while pool.abandoned and time.monotonic() < deadline:
        time.sleep(0.001)
    assert pool.abandoned == 0
    pool.close()
