"""A process that replays runs: it gets some at a time on stdin, and answers with those that do not fit."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO

import msgspec

from holdfast.determinism.guard import guard
from holdfast.histories.app import load_app
from holdfast.histories.judging import Judge
from holdfast.histories.misfits import Judged
from holdfast.histories.recorded import RecordedRun

runs_frame = msgspec.msgpack.Decoder(list[RecordedRun])
judged_frame = msgspec.msgpack.Decoder(Judged)
_encode = msgspec.msgpack.Encoder().encode


def framed(value: object) -> bytes:
    """Return a value as the bytes of one message, with their number before it."""
    data = _encode(value)
    return len(data).to_bytes(4, "big") + data


def main(app: str) -> None:
    """Answer until there is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks is interrupted too, and ends this one
    # What the code at hand prints goes to stderr: stdout is for answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    judge = Judge(load_app(app))
    guard.install()
    while (data := _read(sys.stdin.buffer)) is not None:
        found = [misfit for run in runs_frame.decode(data) if (misfit := judge.judge(run)) is not None]
        answers.write(framed(Judged(misfits=found, queues=dict(judge.queues))))
        judge.queues.clear()
        answers.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    size = stream.read(4)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 4 else None


if __name__ == "__main__":
    main(sys.argv[1])
