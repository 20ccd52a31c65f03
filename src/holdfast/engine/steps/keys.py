"""Idempotency keys of steps: taken with the commit that begins an attempt, given up with the one that ends the step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from holdfast.clock import Instant, micros
from holdfast.context.steps import StepVerb
from holdfast.contract.turns import LeaveKey, TakeKey
from holdfast.payloads import codec
from holdfast.replay.loop import is_done

_LONGEST = 255


def key_of(verb: StepVerb) -> str | None:
    """Return the key that the activity makes of its arguments, None if it makes none or cannot."""
    make = verb.activity.settings.idempotency_key
    if make is None:
        return None
    try:
        key: object = make(*verb.args, **verb.kwargs)
        return _fit(str(key)) if key is not None else None
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None  # the attempt meets the same error, and fails with it


def _fit(key: str) -> str:
    """Return a key as it is stored: a long one, or one that is no Unicode, by what stands for it."""
    encoded = key.encode("utf-8", "surrogatepass")
    if len(encoded) <= _LONGEST and key.isprintable():
        return key
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def takes(verbs: Iterable[object]) -> list[TakeKey]:
    """Return the keys that steps need before they may run."""
    wanted: list[TakeKey] = []
    for verb in verbs:
        if not isinstance(verb, StepVerb) or is_done(verb) or verb.activity.settings.idempotency_key is None:
            continue
        key = key_of(verb)
        if key is not None:
            _, digest = codec.encode_with_digest((verb.args, verb.kwargs), f"the arguments of {verb.activity.name!r}")
            wanted.append(TakeKey(activity=verb.activity.name, key=key, digest=digest, location=verb.location))
    return wanted


def leave_of(verb: object, now: Instant, result: bytes | None = None) -> LeaveKey | None:
    """Return what gives up the key of a step that has ended; a result is kept for steps that ask for it later."""
    key = key_of(verb) if isinstance(verb, StepVerb) else None
    if key is None:
        return None
    assert isinstance(verb, StepVerb)
    settings = verb.activity.settings
    kept = result.decode() if result is not None else None
    return LeaveKey(activity=settings.name, key=key, result=kept, expires=now + micros(settings.idempotency_ttl))
