"""Run an example on Temporal, its file as it is: example.py ADDRESS EXAMPLE.py. What is exchanged is Engine."""

from __future__ import annotations

import runpy
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import holdfast
from holdfast.temporal import TemporalEngine

address, example = sys.argv[1:]
holdfast.Engine = partial(TemporalEngine, lease=timedelta(seconds=5))  # type: ignore[misc,assignment]
sys.argv = [example, address]
sys.path.insert(0, str(Path(example).parent))
runpy.run_path(example, run_name="__main__")
