"""What is safe to print: no control characters, no passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

_IN_ADDRESS = re.compile(r"://[^/@\s]*?:([^@/\s]+)@")
_IN_OPTION = re.compile(r"(?i)password=([^&\s]+)")


def printable(text: str) -> str:
    """Return text with everything that a terminal might obey, or show in another order, written out."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii") if letter != "\u3000" else "\\u3000"


def passwords(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the passwords in addresses of databases, as written and as meant; long ones first."""
    found = {
        word
        for argument in arguments
        for pattern in (_IN_ADDRESS, _IN_OPTION)
        for secret in pattern.findall(argument)
        for word in (secret, unquote(secret))
    }
    yield from sorted(found, key=len, reverse=True)


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return text without secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
