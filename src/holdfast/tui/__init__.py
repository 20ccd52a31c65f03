"""The terminal screen, `holdfast top`: the desk, shown and acted at by keys."""

from holdfast.errors import MissingExtra

try:
    import textual  # noqa: F401
except ImportError:
    raise MissingExtra("holdfast top", "tui") from None

from holdfast.tui.app import Top as Top
from holdfast.tui.house import House as House
