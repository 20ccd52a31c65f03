"""Times as people give them to commands."""

from __future__ import annotations

from datetime import datetime

import click

from holdfast.cli.database import zone
from holdfast.errors import BadInput

_FIRST, _LAST = 1970, 9000
"""The years of moments: what databases and calendars have in common, with room for time zones."""


class Moments(click.ParamType[datetime]):
    """A date, or a date and a time, in the zone of the person unless it says its own, or how long ago."""

    name = "time"

    def convert(self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = value if isinstance(value, datetime) else _ago(value) or datetime.fromisoformat(value)
        except ValueError:
            raise BadInput(
                f"{value} is no time; write -24h (or s, min, h, d, w), 2026-11-01, 2026-11-01T09:30 or "
                "2026-11-01T09:30+01:00"
            ) from None
        except OverflowError:
            raise BadInput(f"{value} is too far in the past") from None
        if not _FIRST <= moment.year <= _LAST:
            raise BadInput(f"{value} is no time that runs have: write a year from {_FIRST} to {_LAST}")
        if moment.tzinfo is not None:
            return moment
        own = zone()
        return moment.replace(tzinfo=own) if own is not None else moment.astimezone()


def _ago(said: str) -> datetime | None:
    from holdfast.clock import Clock, to_datetime
    from holdfast.looking.query import time_back

    back = time_back(said)
    return to_datetime(Clock().now()).replace(microsecond=0) - back if back is not None else None


MOMENT = Moments()
