"""What a Temporal cluster does not offer is refused by name, with the way out, before anything is started."""

from __future__ import annotations

import importlib.util
from datetime import timedelta

import pytest

from holdfast import Context, Engine, Retention, activity, workflow
from holdfast.definitions import Queue
from holdfast.engine.runtime import CAPABILITIES, Runtime
from holdfast.errors import BadInput, NotOffered, StoreUnreachable
from holdfast.limits import Limit

if importlib.util.find_spec("temporalio") is None:
    pytest.skip("temporalio is not installed: pip install 'holdfast[temporal]'", allow_module_level=True)

from holdfast.temporal import TemporalEngine
from holdfast.temporal.refusals import DENIED

NOWHERE = "temporal://127.0.0.1:1/default"


@activity(transaction=True)
def in_transaction() -> None: ...


@activity(idempotency_key=lambda: "key")
async def keyed() -> None: ...


@workflow
async def transacting(ctx: Context) -> None:
    await ctx.step(in_transaction)


@workflow
async def sharing(ctx: Context) -> None:
    await ctx.step(keyed)


@workflow
async def publishing(ctx: Context) -> None:
    await ctx.publish("news")


@workflow(at_once=1)
async def admitted(ctx: Context) -> None: ...


@workflow
async def plain(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workflows": [transacting]}, "transaction=True of activity 'in_transaction'"),
        ({"workflows": [publishing]}, r"ctx\.publish\(\) in workflow 'publishing' \(line \d+\)"),
        ({"workflows": [admitted]}, "the flow control of workflow 'admitted'"),
        ({"limits": [Limit(name="bank", at_once=1)]}, "limit 'bank', counted over all workers"),
        ({"queues": [Queue(name="bank", at_once=1)]}, "at_once or ageing of queue 'bank'"),
        ({"retention": Retention()}, r"TemporalEngine\(retention=\.\.\.\)"),
        ({"durability": "power"}, r"TemporalEngine\(durability=\.\.\.\)"),
        ({"events": []}, r"TemporalEngine\(events=\.\.\.\)"),
        ({"step_trail": True}, r"TemporalEngine\(step_trail=\.\.\.\)"),
    ],
)
def test_what_is_not_offered_is_refused_when_the_engine_is_made(options, words):
    with pytest.raises(NotOffered, match=words) as refused:
        TemporalEngine(NOWHERE, **options)
    assert not TemporalEngine(NOWHERE, workflows=[plain]).offers(refused.value.capability)
    assert refused.value.capability in DENIED


def test_a_key_that_runs_would_share_is_warned_of(caplog):
    engine = TemporalEngine(NOWHERE, workflows=[sharing])
    assert "idempotency_key of activity 'keyed': on Temporal runs do not share results by it" in caplog.text
    assert not engine.offers("keys")


def test_what_is_counted_by_each_worker_is_offered():
    limit = Limit(name="bank", at_once=1, scope="engine")
    assert TemporalEngine(NOWHERE, workflows=[plain], limits=[limit]).offers("steps")


@pytest.mark.parametrize(
    "address",
    ["localhost:7233", "temporal://", "postgresql://localhost/x", "temporal://host:port/x", "temporal://h/a/b"],
)
def test_an_address_that_names_no_server_is_refused(address):
    with pytest.raises(BadInput, match="write temporal://host:7233/namespace"):
        TemporalEngine(address)


@pytest.mark.parametrize("options", [{"history_limit": 3}, {"lease": timedelta(0)}, {"max_steps": 0}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(BadInput):
        TemporalEngine(NOWHERE, **options)


async def test_a_server_that_is_not_there_is_named_with_its_address():
    with pytest.raises(StoreUnreachable, match=r"no Temporal server answers at 127\.0\.0\.1:1"):
        await TemporalEngine(NOWHERE, workflows=[plain]).open()


def test_every_denied_capability_is_one_and_an_engine_on_a_database_has_all():
    on_temporal = TemporalEngine(NOWHERE, workflows=[plain])
    on_a_database = Engine(":memory:", workflows=[plain])
    assert CAPABILITIES.keys() > DENIED
    assert all(on_a_database.offers(capability) for capability in CAPABILITIES)
    assert {capability for capability in CAPABILITIES if not on_temporal.offers(capability)} == DENIED
    runtimes: list[Runtime] = [on_temporal, on_a_database]
    for runtime in runtimes:
        with pytest.raises(BadInput, match="'schedule' is not a capability of a runtime; there are admission"):
            runtime.offers("schedule")


async def test_events_are_refused_when_they_are_published():
    with pytest.raises(NotOffered, match=r"publish\(\) .* send to the runs that wait, by their id"):
        await TemporalEngine(NOWHERE, workflows=[plain]).publish("news")
