"""Where the time of a workload goes."""

from __future__ import annotations

import cProfile
import pstats
import sys
from pathlib import Path


def profile(workload: str, folder: Path, scale: float, lines: int) -> None:
    """Print who spends the time of one workload on SQLite: by file, by function, and by function with what it calls."""
    sys.path.insert(0, str(Path(__file__).parent / "systems"))
    import on_holdfast  # type: ignore[import-not-found, unused-ignore]
    import report  # type: ignore[import-not-found, unused-ignore]

    job = report.Job("sqlite", folder, "", scale)
    profiler = cProfile.Profile()
    profiler.enable()
    on_holdfast.WORKLOADS[workload](job)
    profiler.disable()
    stats = pstats.Stats(profiler)
    by_file: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        where = "/".join(Path(file).parts[-2:]) if file != "~" else name
        by_file[where] = by_file.get(where, 0.0) + own
    total = sum(by_file.values())
    for where, own in sorted(by_file.items(), key=lambda item: -item[1])[:lines]:
        print(f"{own:8.3f} s {own / total:6.1%}  {where}")
    stats.strip_dirs()
    stats.sort_stats("tottime").print_stats(lines)
    stats.sort_stats("cumulative").print_stats(lines)
