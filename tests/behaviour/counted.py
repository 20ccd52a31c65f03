"""How many cases of behaviour run on Temporal, and what the others need: `python -m tests.behaviour.counted`."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter

import pytest
from tests.behaviour.on_temporal import needed
from tests.support.paths import ROOT


class Collected:
    """Keeps what pytest collects."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def counted() -> Counter[str]:
    """Return how many cases need which capability, by its name; those that need none have an empty one."""
    collected = Collected()
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "--temporal"]
    with contextlib.redirect_stdout(io.StringIO()):
        failed = pytest.main([*arguments, str(ROOT / "tests/behaviour")], plugins=[collected])
    if failed:
        sys.exit("the tests could not be collected")
    return Counter(needed(item.path.stem, item.name) for item in collected.items)


def main() -> None:
    """Print the figures."""
    cases = counted()
    run, of = cases.pop(""), sum(cases.values())
    sys.stdout.write(f"{run} of {run + of} cases run on Temporal ({run / (run + of):.1%}); the others need\n")
    for capability, number in cases.most_common():
        sys.stdout.write(f"{number:6} {capability}\n")


if __name__ == "__main__":
    main()
