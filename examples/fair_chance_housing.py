"""Fair-chance housing: an application for a flat in New York City, decided in the order that the law prescribes.

    python examples/fair_chance_housing.py

    PREQUALIFICATION           -> DENIED (not qualified)       or CONDITIONAL_OFFER
    CONDITIONAL_OFFER          -> DENIED (not signed in time)  or BACKGROUND_CHECK_ALLOWED
    BACKGROUND_CHECK_ALLOWED   -> APPROVED (nothing adverse)   or INDIVIDUALIZED_ASSESSMENT
    INDIVIDUALIZED_ASSESSMENT  -> APPROVED                     or DENIED

Nobody looks into a record before there are an offer and a signature. Every transition leaves evidence that nobody can
change unnoticed. Kill it whenever you like and run it again: nothing is done or put on record twice. Remove housing.db
to begin again. The services are stubs that go by words in the applicant's id; this is an example, not legal advice.
"""

import asyncio
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from holdfast import Context, Engine, NonRetryable, Retry, RunTerminal, activity, workflow

SIGNED = "background_check_authorization_signed"


class State(StrEnum):
    PREQUALIFICATION = "PREQUALIFICATION"
    CONDITIONAL_OFFER = "CONDITIONAL_OFFER"
    BACKGROUND_CHECK_ALLOWED = "BACKGROUND_CHECK_ALLOWED"
    INDIVIDUALIZED_ASSESSMENT = "INDIVIDUALIZED_ASSESSMENT"
    APPROVED = "APPROVED"
    DENIED = "DENIED"


EDGES = {
    State.PREQUALIFICATION: {State.DENIED, State.CONDITIONAL_OFFER},
    State.CONDITIONAL_OFFER: {State.DENIED, State.BACKGROUND_CHECK_ALLOWED},
    State.BACKGROUND_CHECK_ALLOWED: {State.APPROVED, State.INDIVIDUALIZED_ASSESSMENT},
    State.INDIVIDUALIZED_ASSESSMENT: {State.APPROVED, State.DENIED},
}


@dataclass
class Application:
    application_id: str
    applicant_id: str
    property_id: str
    unit_id: str
    organization_id: str
    market_id: str = "NYC"


@dataclass
class Authorization:
    signed_at: datetime
    signed_by: str


@dataclass
class Decision:
    approved: bool
    state: State
    rationale: str
    evidence_ids: list[str]


async def prequalify(application: Application) -> bool:
    print(f"  looking at the income of {application.applicant_id}, and at nothing else")
    return "low-income" not in application.applicant_id


async def deliver_offer(application: Application) -> str:
    print(f"  offering unit {application.unit_id} to {application.applicant_id}, on condition of a background check")
    return f"offer of {application.unit_id}"


def by_application(application: Application, authorization: Authorization) -> str:
    return application.application_id


@activity(retry=Retry.external_service, idempotency_key=by_application)
async def check_background(application: Application, authorization: Authorization) -> list[str]:
    print(f"  checking the background of {application.applicant_id}, as {authorization.signed_by} allows")
    return ["a conviction"] if "record" in application.applicant_id else []


async def assess(application: Application, adverse: list[str]) -> tuple[bool, dict[str, str]]:
    print(f"  weighing {', '.join(adverse)} for {application.applicant_id}")
    recent = "recent" in application.applicant_id
    return not recent, {"nature": "nobody was hurt", "time since": "one year" if recent else "nine years"}


class Case:
    """Where an application stands, and the evidence of how it came there."""

    def __init__(self, ctx: Context, application: Application) -> None:
        self.ctx, self.state, self.evidence_ids = ctx, State.PREQUALIFICATION, list[str]()
        ctx.on_query("state", lambda: self.state)
        ctx.set_attributes(organization=application.organization_id)
        self.record("init", application=asdict(application))

    def record(self, kind: str, to: State | None = None, **data: Any) -> None:
        """Put something on record, and the transition that it is the reason of."""
        if to is not None and to not in EDGES.get(self.state, ()):
            raise NonRetryable(f"an application does not go from {self.state} to {to}")
        before, self.state = self.state, to or self.state
        self.evidence_ids.append(self.ctx.evidence(kind, {"from": before, "to": self.state} | data))
        self.ctx.set_attributes(state=self.state)

    def decide(self, state: State, rationale: str) -> Decision:
        self.record("decision", state, rationale=rationale)
        return Decision(state is State.APPROVED, state, rationale, self.evidence_ids)


@workflow
async def fair_chance(ctx: Context, application: Application, patience: timedelta = timedelta(days=7)) -> Decision:
    case = Case(ctx, application)
    qualified = await ctx.step(prequalify, application)
    case.record("prequalification", qualified=qualified)
    if not qualified:
        return case.decide(State.DENIED, "does not qualify")
    case.record("offer", State.CONDITIONAL_OFFER, offer=await ctx.step(deliver_offer, application))
    signed = await ctx.receive(SIGNED, Authorization, timeout=patience, default=None)
    if signed is None:
        case.record("authorization", signed=False, patience=str(patience))
        return case.decide(State.DENIED, "the background check was not authorized in time")
    case.record("authorization", State.BACKGROUND_CHECK_ALLOWED, signed=True, by=signed.signed_by, at=signed.signed_at)
    adverse = await ctx.step(check_background, application, signed)
    if not adverse:
        case.record("check", adverse=adverse)
        return case.decide(State.APPROVED, "nothing adverse is known")
    case.record("check", State.INDIVIDUALIZED_ASSESSMENT, adverse=adverse)
    approved, factors = await ctx.step(assess, application, adverse)
    case.record("assessment", factors=factors)
    return case.decide(State.APPROVED if approved else State.DENIED, f"assessed: {', '.join(factors.values())}")


async def main(database: str) -> None:
    application = Application("app_123", "user_456-record", "prop_789", "unit_101", "org_111")
    async with Engine(database, workflows=[fair_chance]) as engine:
        run = await engine.start(fair_chance, application, id=application.application_id)
        with suppress(RunTerminal):  # decided already
            # In a real agency a web handler says so, days later. The id makes it one signature.
            await run.send(SIGNED, Authorization(datetime.now(UTC), application.applicant_id), id="signature")
        decision = await run.result()
        for item in await engine.audit.evidence(run.id):
            print(f"{item.n}. {item.kind}: {item.data['from']} -> {item.data['to']}")
        print(f"{decision.state}: {decision.rationale}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "housing.db"))
