"""The rules for ids of runs and names of queues."""

from __future__ import annotations

from holdfast.errors import InvalidId
from holdfast.texts import check_text, shown

DEFAULT_QUEUE = "default"
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@=+~-")


def check_run_id(run_id: str) -> str:
    """Return a run id fit for use.

    Raises:
        InvalidId: outside the allowed set or length.
    """
    text: object = run_id
    if isinstance(text, str) and 0 < len(text) <= 255 and _ID_CHARACTERS.issuperset(text) and text.strip("."):
        return run_id
    what = ""
    if isinstance(text, str):
        what = f": it has {len(text):,}" if len(text) > 255 else ""
        wrong = ((place, letter) for place, letter in enumerate(text) if letter not in _ID_CHARACTERS)
        what = next((f": U+{ord(letter):04X} at position {place} is none" for place, letter in wrong), what)
    raise InvalidId(
        f"run id {shown(run_id)} must be 1 to 255 characters of A-Z a-z 0-9 . _ : @ = + ~ - and not only dots{what}"
    )


def check_queue(queue: str, where: str) -> str:
    """Return the name of a queue.

    Raises:
        BadInput: it is not 1 to 255 printable characters.
    """
    return check_text(queue, where)


def check_message_id(message_id: object) -> None:
    """Refuse what cannot be the id of a message or event; None is left to be made up."""
    if message_id is not None:
        check_text(message_id, "id", printable=False)
