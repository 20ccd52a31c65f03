"""What the tools around an engine need of it, and how they call the user's callbacks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from holdfast.changes import Change
from holdfast.clock import Clock, to_datetime
from holdfast.contract.operations import Operation, Outcome
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.errors import BadInput
from holdfast.payloads import codec
from holdfast.texts import check_remark, check_text, shown

_logger = logging.getLogger("holdfast.ops")


class Port(Protocol):
    """An engine as its tools see it."""

    @property
    def store(self) -> Store:
        """Where to look."""
        ...

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    @property
    def actor(self) -> str:
        """Who acts when a verb is not told."""
        ...

    @property
    def patience(self) -> float:
        """How many seconds a call of a caller may take."""
        ...

    async def apply(self, operation: Operation) -> Outcome:
        """Make one operation durable and wake the runs it concerns."""
        ...

    def notify(self, change: Change) -> None:
        """Tell the observers."""
        ...


def audited(port: Port, by: str | None, action: str, **detail: object) -> Audit:
    """Return what the audit trail is to say about an action; `detail` is kept as JSON, without what is None."""
    check_who(by, detail.get("reason"))
    said = {name: value for name, value in detail.items() if value is not None}
    text = codec.encode(said, f"the detail of {action!r}").decode() if said else ""
    return Audit(actor=by if by is not None else port.actor, action=action, detail=text)


def check_who(by: object, reason: object = None) -> None:
    """Refuse what cannot be recorded of the person that acts, and of why.

    Raises:
        BadInput: naming the field.
    """
    if by is not None:
        check_text(by, "by", printable=False)
    if reason is not None:
        check_remark(reason, "reason")


def check_expected(found: int, expect: int | None, what: str) -> None:
    """Check that as many are acted on as a dry run has shown: more than one only then.

    Raises:
        BadInput: saying how many there are.
    """
    if expect is None and found > 1:
        raise BadInput(f"this would act on {found} {what}: look at them with dry_run=True, then say expect={found}")
    if expect is not None and expect != found:
        raise BadInput(f"this would act on {found} {what}, not on {expect}: look again with dry_run=True")


def check_names(names: object, field: str) -> None:
    """Check names that are given as several.

    Raises:
        BadInput: it is one text, or one of them is none that can be a name.
    """
    if isinstance(names, str) or not isinstance(names, Collection):
        raise BadInput(f"{field} must be several names, as in [{shown(names)}], not one")
    for name in names:
        check_text(name, field, printable=False)


def check_callback(callback: object, field: str) -> None:
    """Refuse what cannot be called back, plain or async.

    Raises:
        BadInput: it is neither None nor a function.
    """
    if callback is not None and not callable(callback):
        raise BadInput(f"{field} must be a function, not {shown(callback)}")


async def call_back(
    port: Port, name: str, callback: Callable[..., object], *arguments: object, given: str = ""
) -> bool:
    """Call a callback of the user's, and await it if it is async; tell whether it did not raise.

    What it raises is logged and told as `callback.error`, and changes nothing else.

    The `data` of that change has the callback's name, the error and what it was given: `given` if it was no text.
    """
    try:
        made = callback(*arguments)
        if inspect.isawaitable(made):
            await made
    except Exception as error:
        texts = [given] if given else [str(each) for each in arguments]
        _logger.warning("the callback %s raised for %s", name, " ".join(texts), exc_info=True)
        told = f"{type(error).__name__}: {codec.error_to_data(error).message}"
        data = {"callback": name, "error": told, "given": texts}
        port.notify(Change(type="callback.error", at=to_datetime(port.clock.now()), data=data))
        return False
    return True
