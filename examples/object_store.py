"""A driver of one's own: a run in an object store that has nothing but put, get and put-if-absent, over HTTP.

Every batch is one object, named by its number: `00000001`, `00000002`, ... Objects are written once, with
`If-None-Match: *`, so of two drivers that write the same number one is refused and reads what the other wrote. That is
all that atomicity, order and comparing need. Here a server that keeps objects as files stands in for the store.
"""

import asyncio
import http.client
import http.server
import json
import os
import threading
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from holdfast import Context, workflow
from holdfast.errors import NotAsExpected, OutcomeUnknown, StoreError, StoreUnreachable
from holdfast.kv import Driver, check_sizes, drive


class ObjectStoreDriver(Driver):
    """One key space in objects whose names begin with a prefix."""

    compares = True
    max_value = 256 * 1024

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address, self._prefix = (host, port), prefix
        self._values: dict[bytes, bytes] = {}
        self._alarm: str | None = None
        self._number = 0

    def get(self, key: bytes) -> bytes | None:
        self._read_on()
        return self._values.get(key)

    def list(self, prefix: bytes) -> "list[tuple[bytes, bytes]]":
        self._read_on()
        return sorted(pair for pair in self._values.items() if pair[0].startswith(prefix))

    def batch(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        expect: Mapping[bytes, bytes | None] | None = None,
    ) -> None:
        check_sizes(self, puts, deletes)
        self._write(
            {"puts": {key.hex(): value.hex() for key, value in puts.items()}, "deletes": [k.hex() for k in deletes]},
            expect,
        )

    def set_alarm(self, at: datetime) -> None:
        self._write({"alarm": at.isoformat()}, None)

    def clear_alarm(self) -> None:
        self._write({"alarm": None}, None)

    def get_alarm(self) -> datetime | None:
        self._read_on()
        return datetime.fromisoformat(self._alarm) if self._alarm is not None else None

    def _write(self, record: Mapping[str, object], expect: Mapping[bytes, bytes | None] | None) -> None:
        self._read_on()
        while True:
            for key, value in (expect or {}).items():
                if self._values.get(key) != value:
                    raise NotAsExpected(f"key {key!r} has another value: another driver wrote it")
            status, said = self._ask("PUT", self._number + 1, json.dumps(record).encode())
            if status == 201:
                self._apply(record)
                return
            if status != 412:
                raise StoreError(f"the object store took nothing: {status} {said.decode()}")
            self._read_on()  # another was first: its batch is before this one

    def _read_on(self) -> None:
        """Take in what was written since, by any driver."""
        while (found := self._ask("GET", self._number + 1))[0] == 200:
            self._apply(json.loads(found[1]))

    def _apply(self, record: Mapping[str, "object"]) -> None:
        puts, deletes = record.get("puts", {}), record.get("deletes", [])
        assert isinstance(puts, dict)
        assert isinstance(deletes, list)
        for key in deletes:
            self._values.pop(bytes.fromhex(key), None)
        self._values.update((bytes.fromhex(key), bytes.fromhex(value)) for key, value in puts.items())
        if "alarm" in record:
            alarm = record["alarm"]
            self._alarm = alarm if isinstance(alarm, str) else None
        self._number += 1

    def _ask(self, method: str, number: int, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=30)
        try:
            headers = {"If-None-Match": "*"} if method == "PUT" else {}
            connection.request(method, f"/{self._prefix}/{number:08d}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            kind = OutcomeUnknown if method == "PUT" else StoreUnreachable
            raise kind(f"the object store does not answer: {error}") from error
        finally:
            connection.close()


class Objects(http.server.BaseHTTPRequestHandler):
    """The store: objects are files, written whole and never twice."""

    home = Path("objects")

    def do_GET(self) -> None:
        path = self.home / self.path.strip("/")
        self._answer(200, path.read_bytes()) if path.exists() else self._answer(404)

    def do_PUT(self) -> None:
        path, body = self.home / self.path.strip("/"), self.rfile.read(int(self.headers["Content-Length"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        begun.write_bytes(body)
        try:
            os.link(begun, path)  # which fails if the name is taken
        except FileExistsError:
            self._answer(412)
        else:
            self._answer(201)
        finally:
            begun.unlink()

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


async def translate(line: str) -> str:
    print(f"  translating {line!r}", flush=True)
    await asyncio.sleep(0.01)
    return line.upper()


@workflow
async def book(ctx: Context, lines: list[str]) -> str:
    return " ".join([await ctx.step(translate, line) for line in lines])


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    driver = ObjectStoreDriver("127.0.0.1", server.server_port, "book")
    standing = asyncio.run(drive(driver, book, ["once", "upon", "a", "time"], id="book"))
    print(f"{standing.state}: {standing.output}")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
