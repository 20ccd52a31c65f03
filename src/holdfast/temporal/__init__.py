"""The same definitions on a Temporal cluster; needs `pip install "holdfast[temporal]"`."""

from holdfast.errors import MissingExtra

try:
    import temporalio as temporalio
except ImportError as _missing:  # pragma: no cover
    raise MissingExtra("holdfast.temporal", "temporal") from _missing

from holdfast.temporal.engine import TemporalEngine as TemporalEngine
from holdfast.temporal.skipping import TimeSkippingServer as TimeSkippingServer
from holdfast.temporal.testing import TemporalTestEngine as TemporalTestEngine

__all__ = ["TemporalEngine", "TemporalTestEngine", "TimeSkippingServer"]
