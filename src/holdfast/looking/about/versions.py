"""Versions of workflows: which workers have them, and how many open runs were started with them."""

from __future__ import annotations

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import TERMINAL, Status
from holdfast.contract.store import Store
from holdfast.looking.views import Count

_LOOKED_AT = 200


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow: how many workers that are alive have it as their newest, and its open runs.

    `fingerprints` are of the code that those workers have: more than one of a version means that its code was changed
    without another version, or is being rolled out.

    Without a `version` it is of runs that no worker has begun and whose starter did not have the code.
    """

    workflow: str
    version: str
    workers: int
    open: Count
    fingerprints: list[str] = []


async def version_views(store: Store) -> list[VersionView]:
    """Return the versions that workers have or the newest 200 open runs of a workflow were started with."""
    served: dict[tuple[str, str], int] = {}
    codes: dict[tuple[str, str], set[str]] = {}
    for worker in await store.workers():
        if worker.state == "alive":
            for workflow, version in worker.about.workflows.items():
                if not worker.about.advances(workflow):
                    continue
                served[workflow, version] = served.get((workflow, version), 0) + 1
                if fingerprint := worker.about.fingerprints.get(workflow):
                    codes.setdefault((workflow, version), set()).add(fingerprint)
    named = {workflow for workflow, _ in served} | set(await store.workflow_names())
    open_ones = tuple(status for status in Status if status not in TERMINAL)
    found: list[VersionView] = []
    for workflow in sorted(named):
        which = HeadFilter(workflows=(workflow,), statuses=open_ones, limit=_LOOKED_AT)
        newest = {head.version for head in (await store.heads(which)).heads}
        for version in sorted(newest | {each for name, each in served if name == workflow}):
            n, exact, _ = await store.count(msgspec.structs.replace(which, version=version))
            found.append(
                VersionView(
                    workflow=workflow,
                    version=version,
                    workers=served.get((workflow, version), 0),
                    open=Count(n=n, exact=exact),
                    fingerprints=sorted(codes.get((workflow, version), ())),
                )
            )
    return found
