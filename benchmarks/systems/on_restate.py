"""Restate: its server with default durability, the service in a process of its own, as its documentation has it.

    pip install -r requirements/restate.txt
    npm install --prefix <the virtual environment> @restatedev/restate-server@1.7.12

The server (RocksDB, its log synced before it answers) keeps the state as PostgreSQL does for others: W4 and W6 kill the
service, which runs the workflows, and not the server. All requests go over HTTP to the server's ingress.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
import platform
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import httpx
import hypercorn.asyncio
import report
import restate
from report import Job, Metrics

PLATFORM = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
BINARY = Path(sys.prefix, f"node_modules/@restatedev/restate-server-linux-{PLATFORM}/bin/restate-server")
NO_LIMIT = 2**31 - 1
INT, TEXT = restate.RunOptions(type_hint=int), restate.RunOptions(type_hint=str)
RETRY = restate.InvocationRetryPolicy(initial_interval=timedelta(milliseconds=100), exponentiation_factor=1.0)

steps = restate.Service("steps", invocation_retry_policy=RETRY)
inbox = restate.Workflow("inbox")


async def add(number: int) -> int:
    """Do the trivial step."""
    return number + 1


async def word(number: int) -> str:
    """Give a string of 20 bytes as JSON."""
    return f"{number:018}"


@steps.handler()
async def count(ctx: restate.Context, times: int) -> int:
    """Make trivial steps one after another."""
    number = 0
    for _ in range(times):
        number = await ctx.run_typed("add", add, INT, number=number)
    return number


@steps.handler()
async def words(ctx: restate.Context, times: int) -> str:
    """Make steps with results of 20 bytes."""
    last = ""
    for number in range(times):
        last = await ctx.run_typed("word", word, TEXT, number=number)
    return last


@steps.handler()
async def interrupted(ctx: restate.Context, number: int) -> int:
    """Make a step, and a second that never ends in a process with HOLD set; both leave a byte in a file."""
    folder = Path(os.environ["FOLDER"])

    async def first() -> int:
        mark(folder / "first")
        return number + 1

    async def second(number: int) -> int:
        mark(folder / "second")
        if "HOLD" in os.environ:
            await asyncio.Event().wait()
        return number + 1

    return await ctx.run_typed("second", second, number=await ctx.run_typed("first", first))


def mark(path: Path) -> None:
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b".")


@inbox.main()
async def receive(ctx: restate.WorkflowContext, times: int) -> int:
    """Receive messages; the reply to each follows the next receive."""
    total = 0
    message = ctx.promise("message-0", type_hint=int).value()
    for number in range(times):
        total += await message
        message = ctx.promise(f"message-{number + 1}", type_hint=int).value()
        ctx.promise(f"reply-{number}", type_hint=int).resolve(total)
    return total


@inbox.handler()
async def deliver(ctx: restate.WorkflowSharedContext, number: int) -> int:
    """Send a message to the run of the same key and wait for its reply."""
    ctx.promise(f"message-{number}", type_hint=int).resolve(number)
    return await ctx.promise(f"reply-{number}", type_hint=int).value()


@steps.handler(inactivity_timeout=timedelta(seconds=1))
async def remember(ctx: restate.Context, times: int) -> int:
    """Make trivial steps, leave the name of an awakeable in a file, and wait for it."""
    number = 0
    for _ in range(times):
        number = await ctx.run_typed("add", add, INT, number=number)
    name, signal = ctx.awakeable(type_hint=int)
    Path(os.environ["FOLDER"], "awakeable").write_text(name)
    return number + await signal


def serve(port: int) -> None:
    """Serve the workflows in this process, with the settings of Restate's guide to serving."""
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = config.keep_alive_timeout = NO_LIMIT
    config.loglevel = "ERROR"
    print(time.monotonic(), flush=True)
    asyncio.run(hypercorn.asyncio.serve(restate.app([steps, inbox]), config))


class Peer:
    """A server with its service, and a client of both."""

    def __init__(self, job: Job) -> None:
        self.folder = job.folder
        self.data = job.folder / "data"
        self.ports = free_ports(4)
        self.admin = f"http://127.0.0.1:{self.ports[1]}"
        self.trusted = ssl.create_default_context()
        self.client = self.new_client()
        self.idle: list[httpx.AsyncClient] = []

    def new_client(self) -> httpx.AsyncClient:
        """Make a client for one call at a time: one that has many connections slows down with their number."""
        address = f"http://127.0.0.1:{self.ports[0]}"
        return httpx.AsyncClient(base_url=address, timeout=None, verify=self.trusted, trust_env=False)

    def start_server(self) -> None:
        """Start the server, durable as by default, with room for as many runs at a time as W4 has."""
        ingress, admin, node, _ = self.ports
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}/",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
            "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT": "4000",
        }
        command = [str(BINARY), "--no-logo", "--base-dir", str(self.data)]
        with (self.folder / "server.log").open("ab") as log:
            self.server = child(command, settings, stdout=log, stderr=log)

    def start_service(self, **settings: str) -> float:
        """Start a service process; give the instant, of time.monotonic(), at which its imports were done."""
        command = [sys.executable, __file__, "serve", str(self.ports[3])]
        self.service = child(command, {"FOLDER": str(self.folder), **settings}, stdout=subprocess.PIPE)
        assert self.service.stdout is not None
        return float(self.service.stdout.readline())

    def kill_service(self) -> None:
        """End the service with kill -9."""
        self.service.kill()
        self.service.wait()

    async def ready(self) -> None:
        """Wait until the server answers, and tell it where the service is."""
        await until(lambda: self.answers(f"{self.admin}/health"))
        await until(lambda: self.answers("/restate/health"))
        await until(self.registered)

    async def answers(self, url: str) -> bool:
        try:
            return (await self.client.get(url)).status_code == 200
        except httpx.TransportError:
            return False

    async def registered(self) -> bool:
        service = {"uri": f"http://127.0.0.1:{self.ports[3]}"}
        return (await self.client.post(f"{self.admin}/deployments", json=service)).is_success

    async def call(self, path: str, argument: object) -> Any:
        """Start a run and give its result."""
        client = self.idle.pop() if self.idle else self.new_client()
        answer = await client.post(path, json=argument)
        self.idle.append(client)
        assert answer.is_success, answer.text
        return answer.json()

    async def runs(self, condition: str) -> int:
        """Count the runs whose status fulfils a condition."""
        query = {"query": f"SELECT COUNT(*) AS runs FROM sys_invocation WHERE status {condition}"}
        headers = {"accept": "application/json"}
        answer = await self.client.post(f"{self.admin}/query", json=query, headers=headers)
        return int(answer.json()["rows"][0]["runs"])

    async def stored(self) -> int:
        """End the server in an orderly way, give the size of what it keeps, and start it again."""
        self.server.terminate()
        self.server.wait()
        size = report.size_of(self.data)
        self.start_server()
        await self.ready()
        return size

    async def is_suspended(self) -> bool:
        """Tell whether a run waits without occupying the service."""
        return await self.runs("= 'suspended'") == 1


@asynccontextmanager
async def peer(job: Job, **settings: str) -> AsyncIterator[Peer]:
    """Start server and service, and end both."""
    here = Peer(job)
    here.start_server()
    here.start_service(**settings)
    try:
        await here.ready()
        await here.call("/steps/count", 1)
        yield here
    finally:
        for client in (here.client, *here.idle):
            await client.aclose()
        here.kill_service()
        here.server.kill()
        here.server.wait()


def child(command: list[str], settings: dict[str, str], **streams: int | IO[bytes]) -> subprocess.Popen[str]:
    """Start a process that does not outlive this one."""
    bound = ["setpriv", "--pdeathsig", "KILL", *command]
    return subprocess.Popen(bound, env={**os.environ, **settings}, **streams, text=True)


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until a condition, or the coroutine that it makes, is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        held = condition()
        if await held if asyncio.iscoroutine(held) else held:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"not true within {seconds} seconds")


async def one_run(job: Job) -> Metrics:
    """W1: one run of many steps."""
    times = job.times(1_000)
    async with peer(job) as here:
        began = time.perf_counter()
        assert await here.call("/steps/count", times) == times
        return {"steps_per_second": times / (time.perf_counter() - began)}


async def many_runs(job: Job) -> Metrics:
    """W2: many runs at once."""
    runs = job.times(1_000)
    async with peer(job) as here:
        began = time.perf_counter()
        results = await asyncio.gather(*(here.call("/steps/count", 10) for _ in range(runs)))
        took = time.perf_counter() - began
        assert results == [10] * runs
        return {"steps_per_second": runs * 10 / took}


async def latency(job: Job) -> Metrics:
    """W3: one-step runs one after another."""
    taken = []
    async with peer(job) as here:
        for _ in range(job.times(200)):
            began = time.perf_counter()
            assert await here.call("/steps/count", 1) == 1
            taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50_ms": taken[len(taken) // 2] * 1_000, "p99_ms": taken[len(taken) * 99 // 100] * 1_000}


async def recovery(job: Job) -> Metrics:
    """W4: the service is killed in the second step of every run; the callers stay connected to the server."""
    runs = job.times(2_000)
    async with peer(job, HOLD="1") as here:
        calls = [asyncio.create_task(here.call("/steps/interrupted", number)) for number in range(runs)]
        await until(lambda: report.size_of(job.folder / "second") == runs)
        here.kill_service()
        assert await here.runs("<> 'completed'") == runs
        began = here.start_service()
        assert await asyncio.gather(*calls) == [number + 2 for number in range(runs)]
        took = time.monotonic() - began
    assert report.size_of(job.folder / "first") == runs, "a recorded step ran again"
    return {"seconds": took}


async def messages(job: Job) -> Metrics:
    """W5: a handler resolves a promise of the run; it returns when the run has resolved another as its reply."""
    times, each, many = job.times(200), job.times(20), 100
    async with peer(job) as here:
        began = time.perf_counter()
        await converse(here, "one", times)
        alone = times / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(converse(here, f"run-{number}", each) for number in range(many)))
        return {
            "round_trips_per_second": alone,
            "round_trips_per_second_100": many * each / (time.perf_counter() - began),
        }


async def converse(here: Peer, name: str, times: int) -> None:
    """Start a run, send it one message after another, and take its result."""
    run = asyncio.create_task(here.call(f"/inbox/{name}/receive", times))
    for number in range(times):
        assert await here.call(f"/inbox/{name}/deliver", number) == number * (number + 1) // 2
    assert await run == times * (times - 1) // 2


async def replay(job: Job) -> Metrics:
    """W6: the service starts again and a suspended run of many steps goes on."""
    times = job.times(5_000)
    async with peer(job) as here:
        run = asyncio.create_task(here.call("/steps/remember", times))
        await until((job.folder / "awakeable").exists)
        await until(lambda: here.is_suspended())
        here.kill_service()
        began = here.start_service()
        name = (job.folder / "awakeable").read_text()
        answer = await here.client.post(f"/restate/awakeables/{name}/resolve", json=1)
        assert answer.status_code == 202, answer.text
        assert await run == times + 1
        return {"seconds": time.monotonic() - began}


async def stored_bytes(job: Job) -> Metrics:
    """W8: the growth of the server's folder, its log included; ended in an orderly way before each measurement."""
    runs = job.times(1_000)
    async with peer(job) as here:
        before = await here.stored()
        results = await asyncio.gather(*(here.call("/steps/words", 10) for _ in range(runs)))
        assert results == [await word(9)] * runs
        return {"bytes_per_step": (await here.stored() - before) / (runs * 10)}


async def footprint(job: Job) -> Metrics:
    """W10: time to import the package, size of it with all it needs, and of the server's binary."""
    return {**report.footprint("import restate"), "server_mb": report.size_of(BINARY) / 1e6}


def settings(job: Job) -> str:
    """Say what differs from the defaults."""
    return (
        "server 1.7, its log synced as by default; one service process; hypercorn as in Restate's guide to serving;"
        " 4,000 invocations at a time, retried every 100 ms (defaults: 1,000; 500 ms, doubling)"
    )


WORKLOADS = {
    "W1": one_run,
    "W2": many_runs,
    "W3": latency,
    "W4": recovery,
    "W5": messages,
    "W6": replay,
    "W8": stored_bytes,
    "W10": footprint,
}

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        report.main({name: report.at_once(workload) for name, workload in WORKLOADS.items()}, settings)
