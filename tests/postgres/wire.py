"""As much of PostgreSQL's wire protocol as the proxy and the pooler need: frames, and which of them commits what."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

SSL_REQUEST = 80877103
ENCRYPTION_REQUEST = 80877104
CANCEL_REQUEST = 80877102
PROTOCOL = 3 << 16

SYNC = b"S\0\0\0\4"


class Frame(NamedTuple):
    """One message: its type (b"" for the untyped ones that open a connection), its body, and all its bytes."""

    type: bytes
    body: bytes
    whole: bytes

    @property
    def code(self) -> int:
        """What an untyped message asks for: a version of the protocol, or one of the requests above."""
        return int.from_bytes(self.body[:4])


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self, *, opening: bool = False) -> None:
        self._bytes = bytearray()
        self.opening = opening

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what arrived, and give each message that is now complete."""
        self._bytes += data
        while True:
            start = 0 if self.opening else 1
            if len(self._bytes) < start + 4:
                return
            end = start + int.from_bytes(self._bytes[start : start + 4])
            if len(self._bytes) < end:
                return
            whole = bytes(self._bytes[:end])
            del self._bytes[:end]
            frame = Frame(whole[:start], whole[start + 4 :], whole)
            # A refused request for encryption is followed by another untyped message.
            self.opening = self.opening and frame.code in (SSL_REQUEST, ENCRYPTION_REQUEST)
            yield frame


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Make a message."""
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(parameters: dict[str, str]) -> bytes:
    """Make the message that opens a session."""
    text = "".join(f"{name}\0{value}\0" for name, value in parameters.items()) + "\0"
    return message(b"", struct.pack("!i", PROTOCOL) + text.encode())


def fatal(code: str, text: str) -> bytes:
    """Make the message with which a server refuses or ends a session."""
    return message(b"E", f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode())


# What a message commits: a transaction that was begun, or what was written outside of one.
Commit = Literal["transaction", "statement"]
Kind = Literal["begin", "commit", "rollback", "write", "other"]

_NOT_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_COMMENTS = ("--", "/*")
_LOCKING = re.compile(r"\bFOR\s+(NO\s+KEY\s+)?UPDATE\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|CREATE|ALTER|DROP|CALL|DO)\b", re.IGNORECASE)
_KINDS: dict[str, Kind] = {
    "BEGIN": "begin",
    "START": "begin",
    "COMMIT": "commit",
    "END": "commit",
    "ROLLBACK": "rollback",
    "ABORT": "rollback",
}


def statements(text: str) -> list[Kind]:
    """Tell of each statement in a text what it means for transactions."""
    code = _LOCKING.sub("", _NOT_CODE.sub(lambda match: " " if match[0].startswith(_COMMENTS) else " x ", text))
    return [_kind(part) for part in code.split(";") if part.strip()]


def _kind(statement: str) -> Kind:
    words = statement.upper().split()
    if words[0] == "ROLLBACK" and "TO" in words:
        return "other"
    return _KINDS.get(words[0]) or ("write" if _WRITES.search(statement) else "other")


_PARTS_OF_REQUESTS = frozenset((b"P", b"B", b"D", b"E", b"C", b"H", b"S"))


class Session:
    """What one client has asked for and not been answered yet, and which of its messages make a commit.

    It foresees the state of the transaction from what is asked, since a pipeline does not wait for answers, and is put
    right by every answer that leaves nothing open.
    """

    def __init__(self) -> None:
        self.open: list[bytes] = []  # the type of every message that will be answered by ReadyForQuery
        self._unsynced = False
        self._in_transaction = False
        self._writes = False
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    @property
    def waits_for_server(self) -> bool:
        """Whether the client has asked for anything that is not answered, or is about to complete such a request."""
        return bool(self.open) or self._unsynced

    def asked(self, frame: Frame) -> Commit | None:
        """Take a message of the client; tell what it commits, if it does."""
        commits: Commit | None = None
        if frame.type in _PARTS_OF_REQUESTS:
            self._unsynced = frame.type != b"S"
        match frame.type:
            case b"Q":
                self.open.append(frame.type)
                commits = self._execute(_text(frame.body)) or self._end_of_statements()
            case b"P":
                name, text = frame.body.split(b"\0", 2)[:2]
                self._prepared[name] = text.decode(errors="replace")
            case b"B":
                portal, name = frame.body.split(b"\0", 2)[:2]
                self._portals[portal] = self._prepared.get(name, "")
            case b"E":
                commits = self._execute(self._portals.get(frame.body.split(b"\0", 1)[0], ""))
            case b"S":
                self.open.append(frame.type)
                commits = self._end_of_statements()
            case b"F":
                self.open.append(frame.type)
            case b"c":  # the end of what COPY takes in: what commits is this, or the Sync after it
                self._writes = not self._in_transaction
                if self.open[:1] == [b"Q"]:
                    commits = self._end_of_statements()
        return commits

    def answered(self, frame: Frame) -> bool:
        """Take a message of the server; tell whether it says that a request has been dealt with."""
        if frame.type == b"G" and self.open[:1] == [b"S"]:
            # A server that is copying in ignores the Sync which came with the command; the client sends another.
            self.open.pop(0)
        if frame.type != b"Z":
            return False
        if self.open:
            self.open.pop(0)
        if not self.open:
            self._in_transaction = frame.body != b"I"
        return True

    def _execute(self, text: str) -> Commit | None:
        commits: Commit | None = None
        for kind in statements(text):
            if kind == "commit" and self._in_transaction:
                commits = "transaction"
            if kind == "write" and not self._in_transaction:
                self._writes = True
            if kind in ("begin", "commit", "rollback"):
                self._in_transaction = kind == "begin"
        return commits

    def _end_of_statements(self) -> Commit | None:
        commits: Commit | None = "statement" if self._writes and not self._in_transaction else None
        self._writes = False
        return commits


def _text(body: bytes) -> str:
    return body.rstrip(b"\0").decode(errors="replace")
