"""What code is written for that does not care what keeps its runs: a Runtime, and what one may offer."""

from holdfast.engine.runtime import CAPABILITIES as CAPABILITIES
from holdfast.engine.runtime import Runtime as Runtime

__all__ = ["CAPABILITIES", "Runtime"]
