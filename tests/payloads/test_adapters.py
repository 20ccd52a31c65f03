"""Types that msgspec refuses and pydantic knows: written, and read back equal."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from holdfast.errors import DefinitionError, UndecodablePayload
from holdfast.payloads.codec import decode, decoder, digest, encode

T = TypeVar("T")


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = Field(alias="dogName", default="")
    born: datetime = datetime(2020, 1, 1, tzinfo=UTC)


class Box(BaseModel, Generic[T]):
    inside: T


@dataclass
class Left:
    x: int
    price: Decimal = Decimal("1.5")
    raw: bytes = b"\x00\xff"
    wait: timedelta = timedelta(minutes=90)


@dataclass
class Right:
    y: int


class Temperature:
    """A class that says itself what pydantic makes of it."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Temperature) and other.degrees == self.degrees

    def __hash__(self) -> int:
        return hash(self.degrees)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.float_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda each: each.degrees),
        )


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Cat | Dog, Dog(dogName="Rex")),
        (Cat | Dog | None, None),
        (list[Cat | Dog], [Cat(lives=9), Dog(dogName="Rex")]),
        (dict[str, Pet], {"a": Cat(lives=9), "b": Dog()}),
        (Box[Cat | Dog], Box[Cat | Dog](inside=Dog(dogName="Rex"))),
        (Box[int] | Cat, Box[int](inside=1)),
        (Left | Right | Cat, Right(1)),
        (Left | Right | Cat, Left(1)),
        (Annotated[Left | Right, Field(union_mode="smart")], Left(2)),
        (Temperature, Temperature(36.6)),
        (list[Temperature], [Temperature(36.6)]),
    ],
    ids=[
        "union",
        "none",
        "list",
        "tagged",
        "generic",
        "generic or model",
        "dataclass",
        "bytes",
        "annotated",
        "own schema",
        "list of own",
    ],
)
def test_what_msgspec_refuses_is_written_and_read_by_pydantic(kind: Any, value: Any):
    """S1-20 It comes back equal, and of the same class; the digest is that of equal values."""
    data = encode(value)
    found = decode(data, kind)
    assert (found, type(found)) == (value, type(value))
    assert decoder(kind)(data) == value
    assert digest(found) == digest(value)


def test_what_does_not_fit_is_refused_with_its_place():
    with pytest.raises(UndecodablePayload, match="message 'pet'"):
        decode(b'{"kind": "cow"}', Pet, "message 'pet'")


def test_a_type_that_neither_knows_is_refused_as_before():
    class Nothing:
        pass

    with pytest.raises(DefinitionError, match="has no fields that JSON could fill"):
        decoder(Nothing)


def test_a_union_in_which_nothing_is_pydantics_is_refused_as_before():
    """What of two records was meant cannot be told; and pydantic is not imported for it."""
    code = """
import sys
import holdfast
from dataclasses import dataclass
from holdfast.payloads.codec import decoder
assert "pydantic" not in sys.modules
@dataclass
class A: x: int
@dataclass
class B: y: int
try:
    decoder(A | B)
except holdfast.errors.DefinitionError as error:
    print("tagged Struct union" in str(error), "pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
