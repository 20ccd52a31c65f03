"""Idempotency keys that activities make from their arguments."""

from __future__ import annotations

import hashlib

from holdfast.context.steps import StepVerb

_LONGEST = 255


def key_of(verb: StepVerb) -> str | None:
    """Return the key that the activity makes of its arguments, None if it makes none or cannot."""
    make = verb.activity.settings.idempotency_key
    if make is None:
        return None
    try:
        key: object = make(*verb.args, **verb.kwargs)
        return fit(str(key)) if key is not None else None
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None  # the attempt meets the same error, and fails with it


def fit(key: str) -> str:
    """Return a key as it is stored: a long one, or one that is no Unicode, by what stands for it."""
    encoded = key.encode("utf-8", "surrogatepass")
    if len(encoded) <= _LONGEST and key.isprintable():
        return key
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"
