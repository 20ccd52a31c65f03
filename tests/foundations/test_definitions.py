"""Definitions: names, versions, signatures, fingerprints."""

from __future__ import annotations

import pytest

from holdfast import Context, activity, workflow
from holdfast.definitions import Registry, as_activity
from holdfast.errors import BadInput, DefinitionError


@workflow(name="order", version="1.0.0")
async def order_one(ctx: Context, number: int) -> int:
    return number


@workflow(name="order", version="2.0.0")
async def order_two(ctx: Context, number: int, colour: str = "red") -> int:
    return number + 1


def test_a_workflow_has_a_name_a_version_and_a_function():
    """S3-1 B20 Both versions are kept; new runs take the latest, old runs the one they were started with."""
    registry = Registry([order_one, order_two])
    assert (order_one.name, order_one.version) == ("order", "1.0.0")
    assert registry.get("order") is order_two
    assert registry.get("order", "1.0.0") is order_one
    assert registry.get("order", "0.9.0") is order_two


def test_a_workflow_can_be_called_like_the_plain_function_it_is():
    """S0-5 S3-1 Nothing but a context is needed to test it alone."""
    coroutine = order_one(None, 3)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value == 3


def test_input_is_stored_by_parameter_name_and_takes_new_defaults():
    """S3-1 S2-10 Input recorded by an older signature decodes under a newer one that added a default."""
    encoded, _ = order_one.encode_input((3,), {})
    assert encoded == '{"number":3}'
    assert order_two.decode_input(encoded) == ([3, "red"], {})
    with pytest.raises(BadInput, match="missing a required argument: 'number'"):
        order_one.encode_input((), {})


def test_a_workflow_with_anonymous_parameters_is_refused_where_it_stands():
    with pytest.raises(DefinitionError, match=r"test_definitions\.py:\d+"):

        @workflow
        async def anything(ctx: Context, *things: int) -> None: ...


def test_an_activity_stays_a_plain_function_and_its_options_can_be_varied():
    """S3-2 S0-5"""

    @activity(name="pay", raises=[KeyError])
    def charge(amount: int) -> int:
        return amount * 2

    assert charge(4) == 8
    other = charge.options(name="pay-again")
    assert (charge.name, other.name) == ("pay", "pay-again")
    assert other.settings.raises == (KeyError,)
    assert other(4) == 8


def test_a_callable_that_cannot_be_hashed_is_still_a_step():
    class Doubler:
        __hash__ = None

        def __call__(self, number: int) -> int:
            return number * 2

    assert as_activity(Doubler()).name == "Doubler"


def test_the_fingerprint_changes_with_the_code():
    """S1-37 A blocked run is tried again when the fingerprint differs."""
    versions = []
    for number in (1, 2):
        namespace: dict[str, object] = {"__name__": "elsewhere", "workflow": workflow}
        exec(f"@workflow\nasync def job(ctx):\n    return {number}\n", namespace)
        versions.append(namespace["job"].fingerprint)
    assert versions[0] != versions[1]
    assert order_one.fingerprint == order_one.fingerprint
