"""Which version of holdfast this is, said once: the build reads it here."""

from __future__ import annotations

__version__ = "0.1.0"
