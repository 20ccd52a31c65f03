"""A worker with metrics and traces that dies in its third step; run by tests/behaviour/test_observability.py.

usage: observed_worker.py DATABASE REPORT [die]

Writes what was counted and spanned in this process to REPORT as JSON: just before it kills itself, or at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from holdfast import Context, Engine, workflow
from holdfast.ops.metrics import Metrics
from holdfast.ops.tracing import Tracing

REGISTRY, SPANS, PROVIDER = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(SPANS))


def write() -> None:
    samples = {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith(("_created", "_bucket", "_sum"))
    }
    spans = [f"{span.name} {(span.attributes or {})['holdfast.attempt']!r}" for span in SPANS.get_finished_spans()]
    Path(sys.argv[2]).write_text(json.dumps({"samples": samples, "spans": spans}))


async def work(number: int) -> int:
    if number == 3 and sys.argv[3:] == ["die"]:
        write()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@workflow(check=False)
async def order(ctx: Context) -> int:
    total = await ctx.step("first", work, 1)
    total += await ctx.step("second", work, 2)
    await ctx.sleep(timedelta(milliseconds=1))
    return total + await ctx.step("third", work, 3)


async def main() -> None:
    options: dict[str, Any] = {"on_change": Metrics(REGISTRY), "tracing": Tracing(PROVIDER), "durability": "process"}
    async with Engine(sys.argv[1], workflows=[order], **options) as engine:
        run = await engine.start(order, id="order")
        await run.result(timeout=timedelta(seconds=180))
    write()


if __name__ == "__main__":
    asyncio.run(main())
