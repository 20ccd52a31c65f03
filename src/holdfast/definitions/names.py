"""The ids of runs and the names of queues: what they may be."""

from __future__ import annotations

from holdfast.errors import BadInput, InvalidId

DEFAULT_QUEUE = "default"
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@=+~-")


def check_run_id(run_id: str) -> str:
    """Return a run id fit for use.

    Raises:
        InvalidId: outside the allowed set or length.
    """
    text: object = run_id
    if (
        not (isinstance(text, str) and 0 < len(text) <= 255 and _ID_CHARACTERS.issuperset(text))
        or run_id.strip(".") == ""
    ):
        raise InvalidId(
            f"run id {run_id!r} must be 1 to 255 characters of A-Z a-z 0-9 . _ : @ = + ~ - and not only dots"
        )
    return run_id


def check_queue(queue: str, where: str) -> str:
    """Return the name of a queue.

    Raises:
        BadInput: it is not 1 to 255 printable characters.
    """
    given: object = queue
    if not (isinstance(given, str) and 0 < len(given) <= 255 and given.isprintable()):
        raise BadInput(f"{where} must be 1 to 255 printable characters, not {queue!r}")
    return queue
