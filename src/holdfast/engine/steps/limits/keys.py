"""The keys under which steps use their limits."""

from __future__ import annotations

from holdfast.bodies.admission import asking
from holdfast.bodies.keys import fit
from holdfast.context.steps import StepVerb
from holdfast.errors import DefinitionError


def key_of(verb: StepVerb) -> str | None:
    """Return the key under which a step uses its limit, empty if its activity makes none; None if it cannot be made."""
    if verb.activity.settings.limit_key is None:
        return ""
    try:
        return made_key(verb)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None  # the attempt meets the same error, and fails with it


def made_key(verb: StepVerb) -> str:
    """Return the key that the activity makes of its arguments.

    Raises:
        DefinitionError: it is no text.
        BaseException: whatever the activity's function raises.
    """
    settings = verb.activity.settings
    if settings.limit_key is None:
        return ""
    with asking("limit_key", settings):
        key: object = settings.limit_key(*verb.args, **verb.kwargs)
    if not isinstance(key, str):
        raise DefinitionError(f"limit_key of activity {settings.name!r} must return a text, not {key!r}")
    return fit(key)
