"""Cuts: where an ended run continues when it is reopened."""

from holdfast.replay.cuts.cut import UNDO, Cut, Redone, covers, only_undoes, threw
from holdfast.replay.cuts.finder import (
    CutFinder,
    cut_for_all,
    cut_for_rerun,
    cut_for_resume,
    cut_for_retry,
    cut_for_undoing,
)

__all__ = [
    "UNDO",
    "Cut",
    "CutFinder",
    "Redone",
    "covers",
    "cut_for_all",
    "cut_for_rerun",
    "cut_for_resume",
    "cut_for_retry",
    "cut_for_undoing",
    "only_undoes",
    "threw",
]
