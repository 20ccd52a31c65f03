"""A build as a graph: each node runs as soon as what it depends on is done, two of them at a time.

    python examples/build_graph.py

A node is a function; its parameters are named after the nodes whose results it wants. Kill the program when you like
and run it again: what was built stays built. Remove build.db to begin again.
"""

import asyncio
import sys

from holdfast import Engine
from holdfast.declarative import graph


async def checkout(input: str) -> str:
    print(f"  checking out {input}")
    await asyncio.sleep(0.1)
    return f"{input}@{len(input)}"


async def lint(checkout: str) -> int:
    print(f"  reading {checkout}")
    await asyncio.sleep(0.2)
    return 0


async def build_client(checkout: str) -> str:
    print(f"  building the client of {checkout}")
    await asyncio.sleep(0.2)
    return f"client-{checkout}"


async def build_server(checkout: str) -> str:
    print(f"  building the server of {checkout}")
    await asyncio.sleep(0.3)
    return f"server-{checkout}"


async def try_together(build_client: str, build_server: str) -> bool:
    print(f"  letting {build_client} talk to {build_server}")
    await asyncio.sleep(0.2)
    return True


async def publish(lint: int, try_together: bool, build_server: str) -> str:
    print(f"  publishing {build_server}: {lint} complaints, tests {'passed' if try_together else 'failed'}")
    return f"published {build_server}"


build = graph(
    "build",
    {
        checkout: [],
        lint: [checkout],
        build_client: [checkout],
        build_server: [checkout],
        try_together: [build_client, build_server],
        publish: [lint, try_together, build_server],
    },
    max_parallel=2,
)


async def main(database: str) -> None:
    print(build.to_mermaid())
    async with Engine(database, workflows=[build]) as engine:
        run = await engine.start(build, "main", id="build-1")
        print((await run.result())["publish"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "build.db"))
