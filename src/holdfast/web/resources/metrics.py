"""What a monitor reads of a database, in the text format of Prometheus: the same whichever process it asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.looking.desk import Desk

Sample = tuple[Mapping[str, str], float]


async def metrics_text(desk: Desk) -> str:
    """Return the state of the database and its workers, as gauges; numbers of runs are counted up to 10,000."""
    about, overdue, groups = await desk.database(), await desk.count("is:overdue"), await desk.letter_groups()
    queues, limits = await desk.queues(), await desk.limits()
    return "".join(
        (
            _gauge(
                "runs",
                "Runs by status, counted up to 10,000.",
                (({"status": status}, count.n) for status, count in about.runs.items()),
            ),
            _gauge("overdue_runs", "Runs due for more than a minute that no worker took.", [({}, overdue.n)]),
            _gauge(
                "unseen_dead_letters",
                "Dead letters that no person has seen.",
                [({}, sum(each.count for each in groups))],
            ),
            _gauge("workers", "Workers by state.", (({"state": state}, n) for state, n in about.workers.items())),
            _gauge(
                "queue_attempts_waiting",
                "Attempts that wait in a queue.",
                (({"queue": each.queue, "activity": each.activity}, each.waiting) for each in queues),
            ),
            _gauge(
                "queue_attempts_taken",
                "Attempts that a worker of a queue has.",
                (({"queue": each.queue, "activity": each.activity}, each.taken) for each in queues),
            ),
            _gauge(
                "limit_places_used",
                "Places of a limit that are used.",
                (({"limit": each.name}, each.used) for each in limits),
            ),
            _gauge(
                "limit_steps_waiting",
                "Steps that wait for a limit.",
                (({"limit": each.name}, each.waiting) for each in limits),
            ),
        )
    )


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP holdfast_{name} {text}\n# TYPE holdfast_{name} gauge\n"]
    for labels, value in samples:
        said = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels.items())
        lines.append(f"holdfast_{name}{f'{{{said}}}' if said else ''} {value:g}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
