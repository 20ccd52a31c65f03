"""What a claim tells of the worker that had the run before."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.contract.rows import Claim


def with_deaths(claims: Iterable[Claim], deaths: int) -> list[Claim]:
    """Return claims in which those of a worker that died tell how many did of late."""
    return [claim if claim.died is None else msgspec.structs.replace(claim, deaths=deaths) for claim in claims]
