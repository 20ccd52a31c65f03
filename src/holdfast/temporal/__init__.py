"""The same definitions on a Temporal cluster; needs `pip install "holdfast[temporal]"`."""

from holdfast.errors import MissingExtra

try:
    import temporalio as temporalio
except ImportError as _missing:  # pragma: no cover
    raise MissingExtra("holdfast.temporal", "temporal") from _missing

from holdfast.temporal.engine import TemporalEngine as TemporalEngine

__all__ = ["TemporalEngine"]
