"""Delivering to a run from outside: the only write that its driver does not make."""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec

from holdfast.clock import Clock, new_id
from holdfast.errors import BadInput, NotAsExpected
from holdfast.kv import keys
from holdfast.kv.alarms import wake_by
from holdfast.kv.driver import Driver, answer, check_sizes
from holdfast.kv.space import read_number, read_state, stored_value
from holdfast.kv.standing import ENDED, EVICTED, StoredMessage, encoded
from holdfast.payloads import codec
from holdfast.replay.location import check_name

Kind = Literal["message", "cancel", "compensate", "pause", "resume", "evict"]
KINDS = ("message", "cancel", "compensate", "pause", "resume", "evict")


async def deliver(
    driver: Driver,
    name: str = "",
    payload: object = None,
    *,
    id: str | None = None,
    kind: Kind = "message",
    clock: Clock | None = None,
) -> bool:
    """Put a message into the key space of a run and have the run woken; durable when it returns.

    Messages are taken in the order in which they were delivered. One with an id is delivered once: False if it was
    delivered before. Of the other kinds, `cancel` asks the run to stop (`compensate`: and to undo what it did), `pause`
    lets `drive` do nothing until `resume`, and `evict` has the driver that has the run give it up.

    Raises:
        BadInput: the name or the payload does not fit.
        NotOurDatabase: the key space is not one of a run.
        SchemaTooNew: a newer holdfast wrote it.
        StoreError: as `Driver.batch` does.
    """
    if kind not in KINDS:
        raise BadInput(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    clock = clock or Clock()
    if await answer(driver.get(keys.ABOUT)) is None:
        keys.joined(await answer(driver.list(b"")))  # which refuses the key space of another program, or of an engine
    if kind == "evict" and driver.compares:
        return await _evict(driver)
    data = b"null"
    if kind == "message":
        check_name(name, "message name")
        data = codec.encode(payload, f"the payload of message {name!r}")
    seen = keys.seen_key(id) if id is not None else None
    if seen is not None and await answer(driver.get(seen)) is not None:
        return False
    now = clock.now()
    before = await answer(driver.list(keys.MESSAGE))
    stamp = max(now, keys.stamp_of(before[-1][0]) + 1) if before else now
    message = StoredMessage(kind=kind, name=name, id=id or new_id(), payload=msgspec.Raw(data), at=now)
    puts = keys.parts(keys.message_key(stamp, secrets.randbits(64)), encoded(message), driver.max_value)
    if seen is not None:
        puts[seen] = b"%d" % now
    check_sizes(driver, puts, ())
    await wake_by(driver, now)
    try:
        await answer(driver.batch(puts, (), {seen: None} if seen is not None and driver.compares else None))
    except NotAsExpected:
        return False  # delivered by another at the same moment
    await wake_by(driver, now)  # a driver that looked before the batch may have set it to later
    return True


async def reply_to(driver: Driver, message_id: str) -> Any:
    """Return what the run answered to the message with an id, by `ctx.reply`; None if it has not."""
    found = await stored_value(driver, keys.answer_key(message_id))
    return codec.decode(found) if found is not None else None


async def _evict(driver: Driver) -> bool:
    """Fence the driver that has the run: its next batch is refused. What it has under way counts as handed back."""
    while True:
        stored = await answer(driver.get(keys.EPOCH))
        if stored is None:
            return False  # no driver has written anything
        state = read_state(await stored_value(driver, keys.STATE))
        if state is None or state.state in ENDED:
            return False
        puts = {keys.EPOCH: b"%d" % (read_number(keys.EPOCH, stored) + 1), keys.STATE: encoded(EVICTED)}
        try:
            await answer(driver.batch(puts, (), {keys.EPOCH: stored}))
        except NotAsExpected:
            continue
        return True
