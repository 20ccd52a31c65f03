"""Make the key space of one format of an engine's keys, once: `python -m tests.golden.make_keys`.

It has runs of every kind, by the story of schema 10, as a worker that was killed left them. A later format gets a
folder of its own beside it. What is there is never made again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from tests.golden.make import HERE
from tests.golden.schema_10 import story

from holdfast.clock import to_datetime
from holdfast.kv import DirectoryDriver
from holdfast.stores.keyvalue.looking import DirectoryLook

FOLDER = Path(__file__).parent / "keys_1"
KEYS, EXPECTED = FOLDER / "keys.gz", FOLDER / "expected.json"
OWNER = b'{"host":"another host","boot":"another boot","pid":1,"token":"golden"}'
WORKER = (b"Erworkers\0", {4: "another boot", 6: 1, 7: "another host"})
"""How keys of workers begin, and what their columns are set to: wherever it is opened, its workers are gone."""


async def make() -> dict[str, Any]:
    """Make the keys and return how their runs end."""
    with tempfile.TemporaryDirectory() as folder:
        work, kept = Path(folder) / "work", Path(folder) / "kept"

        async def keep() -> None:
            shutil.copytree(work, kept)

        clock = await story.make(f"kv+dir:///{work}", keep)
        await story.tell(f"kv+dir:///{kept}", clock)
        pairs = [(key, anywhere(key, value)) for key, value in DirectoryLook(kept).list(b"")]
        KEYS.write_bytes(gzip.compress(msgspec.msgpack.encode([*pairs, (b"Eo", OWNER)]), mtime=0))
        load(Path(folder) / "golden")
        now = to_datetime(clock.now())
        return {"now": now.isoformat(), "runs": await story.finish(f"kv+dir:///{folder}/golden", now)}


def anywhere(key: bytes, value: bytes) -> bytes:
    """Return a value that does not say where it was made."""
    if not key.startswith(b"Er"):
        return value
    row = [each.replace(HERE, "/app") if isinstance(each, str) else each for each in msgspec.msgpack.decode(value)]
    prefix, columns = WORKER
    if key.startswith(prefix):
        for place, said in columns.items():
            row[place] = said
    return msgspec.msgpack.encode(row)


def load(path: Path) -> None:
    """Put the keys into an empty directory."""
    driver = DirectoryDriver(path)
    driver.batch(dict(msgspec.msgpack.decode(gzip.decompress(KEYS.read_bytes()), type=list[tuple[bytes, bytes]])))
    driver.close()


if __name__ == "__main__":
    if KEYS.exists():
        raise SystemExit(f"{KEYS} is there, and is kept for ever: a new format gets a folder of its own")
    EXPECTED.write_text(json.dumps(asyncio.run(make()), indent=1, ensure_ascii=False, sort_keys=True) + "\n")
