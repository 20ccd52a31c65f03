"""Log records as lines of JSON, for programs that collect them."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

_OF_ANY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Makes each record one line: a JSON object with `time`, `level`, `logger`, `message`, and what it has besides.

    Those of holdfast have `run_id`, `workflow`, `step` and `attempt` where they are about such. `exception` is the
    traceback. What JSON does not know is written as its text; no record, however made, raises.

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.getLogger().addHandler(handler)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: value for name, value in vars(record).items() if name not in _OF_ANY_RECORD | said.keys()}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            said["exception"] = record.exc_text
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        try:
            return json.dumps(said, default=_text)
        except Exception:  # a value that contains itself, keys that are no text: JSON has no way to say that
            return json.dumps({name: value if isinstance(value, str) else _text(value) for name, value in said.items()})


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<unprintable {type(value).__name__}>"
