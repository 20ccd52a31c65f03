"""Text from people, checked in one place with one error; and text that is shown, in logs and errors, made harmless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.errors import BadInput

LONGEST = 255
"""How many characters a name, an id or a key may have."""
LONGEST_REMARK = 4_000
"""How many a reason may have, and the path of a step."""
_SHOWN = 60
_IN_ADDRESS = re.compile(r"://[^/@\s]*?:([^@/\s]+)@")
_IN_OPTION = re.compile(r"(?i)password=([^&\s]+)")


def check_text(text: object, field: str, *, longest: int = LONGEST, printable: bool = True) -> str:
    """Return a text that is fit to be stored: 1 to `longest` characters, printable ones unless that is not asked for.

    Raises:
        BadInput: naming the field, and what is wrong with which character of it.
    """
    if isinstance(text, str) and 0 < len(text) <= longest and text.isprintable():
        return text
    refuse_text(text, field, longest=longest, printable=printable)
    return str(text)


def check_remark(text: object, field: str) -> str:
    """Return a text of any number of lines, or none, that is fit to be stored.

    Raises:
        BadInput: as `check_text`.
    """
    return (
        text if isinstance(text, str) and not text else check_text(text, field, longest=LONGEST_REMARK, printable=False)
    )


def refuse_text(
    text: object,
    field: str,
    *,
    longest: int = LONGEST,
    printable: bool = True,
    secret: bool = False,
    error: type[BadInput] = BadInput,
) -> None:
    """Say what is wrong with a text, if anything is; one that is `secret` is not shown.

    Raises:
        BadInput: or the subclass given.
    """
    wanted = f"{field} must be a text of 1 to {longest:,} {'printable ' if printable else ''}characters"
    if not isinstance(text, str):
        raise error(f"{wanted}, not {f'of class {type(text).__name__}' if secret else shown(text)}")
    if not text:
        raise error(f"{wanted}, and is empty")
    if len(text) > longest:
        raise error(f"{wanted}, and has {len(text):,}{'' if secret else f': {shown(text)}'}")
    for place, letter in enumerate(text):
        if not _storable(letter) or (printable and not letter.isprintable()):
            what = "is not printable" if _storable(letter) else "cannot be stored"
            given = "" if secret else f", not {shown(text)}"
            raise error(f"{wanted}{given}: U+{ord(letter):04X} at position {place} {what}")


def _storable(letter: str) -> bool:
    """Whether a database keeps a character as it is: not NUL, and not half of a pair of surrogates."""
    return letter != "\0" and not "\ud800" <= letter <= "\udfff"


def shown(value: object) -> str:
    """Return the beginning of a value as it is written in code."""
    try:
        said = repr(value)
    except Exception:
        said = f"an object of class {type(value).__name__}"
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def printable(text: str) -> str:
    """Return text with everything that a terminal might obey, or show in another order, written out."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Return lines as `printable` does, all but the first indented: none of them can be taken for a line of a log."""
    return "\n    ".join(printable(line.expandtabs()) for line in text.split("\n"))


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii") if letter != "\u3000" else "\\u3000"


def passwords(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the passwords in addresses of databases, as written and as meant; long ones first."""
    from urllib.parse import unquote  # for errors only

    found = {
        word
        for argument in arguments
        for pattern in (_IN_ADDRESS, _IN_OPTION)
        for secret in pattern.findall(argument)
        for word in (secret, unquote(secret))
    }
    yield from sorted(found, key=len, reverse=True)


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many letters, cut between words where it is longer."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    whole = cut if text[most - 3].isspace() else cut.rpartition(" ")[0]
    return f"{(whole if len(whole) > most // 2 else cut).rstrip()}..."


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return text without secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
