"""`holdfast schema`: the output of `--json` as JSON Schema. While its number stays the same, fields are only added."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click
import msgspec

from holdfast.cli.output import harmless, say
from holdfast.errors import BadInput
from holdfast.looking import views

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def records() -> dict[str, Any]:
    """Return what each schema is made of: a record, or a list of them, which is written under `items`."""
    from holdfast.cli.shell.settings import SettingView
    from holdfast.cli.ship.bench import BenchView
    from holdfast.histories.misfits import CheckReport
    from holdfast.looking.about.figures import FiguresView
    from holdfast.looking.about.graph import GraphView
    from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
    from holdfast.looking.about.versions import VersionView
    from holdfast.looking.acting.limits import LimitView
    from holdfast.looking.acting.purging import PurgeReport
    from holdfast.looking.database import DatabaseView
    from holdfast.moving.report import MoveReport
    from holdfast.transfer.backup import Backup

    return {
        **_secrets(),
        **_ticks(),
        **_plans(),
        **_steps_and_workers(),
        "holdfast.acted/1": views.Acted,
        "holdfast.acts/1": list[views.Acted],
        "holdfast.answer/1": views.Answer,
        "holdfast.audit/1": views.AuditPageView,
        "holdfast.bench/1": BenchView,
        "holdfast.bulk/1": views.BulkProgress,
        "holdfast.check/1": CheckReport,
        "holdfast.children/1": ChildList,
        "holdfast.config/1": list[SettingView],
        "holdfast.count/1": views.Count,
        "holdfast.database/1": DatabaseView,
        "holdfast.doctor/1": list[views.HouseFinding],
        "holdfast.event/1": views.EventPage,
        "holdfast.events/1": list[views.EventNameView],
        "holdfast.evidence/1": EvidencePage,
        "holdfast.figures/1": FiguresView,
        "holdfast.graph/1": GraphView,
        "holdfast.head/1": views.Head,
        "holdfast.held-back/1": list[views.HeldBackView],
        "holdfast.history/1": views.HistoryPage,
        "holdfast.inbox/1": InboxPage,
        "holdfast.letter/1": views.LetterDetail,
        "holdfast.letter-groups/1": list[views.LetterGroup],
        "holdfast.letters/1": list[views.LetterView],
        "holdfast.limit/1": LimitView,
        "holdfast.limits/1": list[LimitView],
        "holdfast.moved/1": MoveReport,
        "holdfast.purged/1": PurgeReport,
        "holdfast.queues/1": list[views.QueueView],
        "holdfast.restored/1": Backup,
        "holdfast.result/1": views.ResultView,
        "holdfast.run/1": views.RunView,
        "holdfast.runs/1": views.Page,
        "holdfast.schedule/1": views.ScheduleView,
        "holdfast.schedules/1": list[views.ScheduleView],
        "holdfast.summary/1": views.Summary,
        "holdfast.verdict/1": views.VerdictView,
        "holdfast.versions/1": list[VersionView],
        "holdfast.why/1": views.Why,
    }


def _plans() -> dict[str, Any]:
    """What dry runs of acts on many are told as."""
    from holdfast.looking.acting.causes import LetterPlan

    return {"holdfast.letter-plan/1": LetterPlan, "holdfast.selection/1": views.SelectionView}


def _ticks() -> dict[str, Any]:
    from holdfast.looking.about.past import PastTick
    from holdfast.schedules.preview import TickPreview

    return {"holdfast.ticks/1": list[TickPreview], "holdfast.past-ticks/1": list[PastTick]}


def _steps_and_workers() -> dict[str, Any]:
    from holdfast.looking.about.arguments import StepDetail

    return {
        "holdfast.step/1": StepDetail,
        "holdfast.steps/1": views.StepList,
        "holdfast.worker/1": views.WorkerView,
        "holdfast.workers/1": list[views.WorkerView],
    }


def _secrets() -> dict[str, Any]:
    from holdfast.looking.acting.requests import RevealedView
    from holdfast.looking.acting.tokens import NewToken, TokenView

    tokens = {"holdfast.token/1": NewToken, "holdfast.tokens/1": list[TokenView]}
    return {**tokens, "holdfast.revealed/1": RevealedView}


def schema_of(name: str, record: Any) -> dict[str, Any]:
    """Return the JSON Schema of a document that names its schema."""
    (made,), parts = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    own = made
    if "$ref" in made:
        own = parts[made["$ref"].rpartition("/")[2]]
    elif made.get("type") == "array":
        own = {"type": "object", "properties": {"items": made}, "required": ["items"]}
    properties = {"schema": {"const": name}, **own.get("properties", {})}
    return {
        "$schema": DRAFT,
        "$id": name,
        "title": name,
        **({"description": own["description"]} if "description" in own else {}),
        "type": "object",
        "properties": properties,
        "required": ["schema", *own.get("required", [])],
        "$defs": parts,
    }


@click.command("schema", short_help="Write the JSON Schema of what --json writes.")
@click.argument("name", required=False)
def schema_command(name: str | None) -> None:
    """Write the JSON Schema of what --json writes, or without a NAME the names of all of them.

    \b
    Example: holdfast schema holdfast.why/1
    """
    known = records()
    if name is None:
        for each in known:
            say(each)
        return
    whole = name if name.startswith("holdfast.") else f"holdfast.{name}"
    whole = whole if "/" in whole else f"{whole}/1"
    if whole not in known:
        near = get_close_matches(whole, known, 1)
        raise BadInput(f"there is no schema {name!r}{f'; did you mean {near[0]}?' if near else ''}")
    text = msgspec.json.encode(schema_of(whole, known[whole]))
    click.echo(harmless(msgspec.json.format(text, indent=2)))
