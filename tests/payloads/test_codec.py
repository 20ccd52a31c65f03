"""Payloads to JSON text and back, errors to data and back."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.errors import (
    BadInput,
    DefinitionError,
    NaiveDatetime,
    NotSerializable,
    NumberTooLong,
    PayloadTooLarge,
    StepFailed,
    TooDeep,
    UndecodablePayload,
)
from holdfast.payloads import codec
from holdfast.payloads.codec import (
    ErrorData,
    decode,
    digest,
    encode,
    encode_named,
    encode_record,
    encode_with_digest,
    error_from_data,
    error_to_data,
)

PARIS = ZoneInfo("Europe/Paris")
NAN = float("nan")
NAIVE = datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Shade(enum.StrEnum):
    DARK = "dark"


class Point(NamedTuple):
    x: int
    y: int


class Basket(TypedDict):
    items: list[str]
    note: NotRequired[str]


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    tags: frozenset[str] = frozenset()


class Order(msgspec.Struct, rename="camel", tag="order"):
    order_id: int
    items: list[Item] = []
    note: str | msgspec.UnsetType = msgspec.UNSET


class Refund(msgspec.Struct, tag="refund"):
    order_id: int


class Pair(msgspec.Struct, array_like=True, tag=True):
    left: Any
    right: Any


class Customer(pydantic.BaseModel):
    name: str
    since: datetime | None = None
    groups: set[str] = set()
    extra: Any = None


class Strict(pydantic.BaseModel, strict=True, extra="forbid"):
    when: datetime
    days: set[int]
    identity: int = pydantic.Field(validation_alias="ID", serialization_alias="ident")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return len(self.days)


STRICT = Strict.model_validate({"when": datetime(2024, 1, 1, tzinfo=UTC), "days": {1}, "ID": 5})


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Moment(datetime):
    pass


def nested(depth: int, core: object = 1) -> object:
    for _ in range(depth):
        core = [core]
    return core


def cycle() -> list[Any]:
    items: list[Any] = []
    items.append({"again": items})
    return items


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(json_values)
def test_plain_values_come_back_equal_and_as_the_same_types(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value), "1 stays 1, 1.0 stays 1.0, key order stays"


@given(json_values)
def test_what_is_written_is_what_every_json_reader_reads(value: object) -> None:
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (datetime, st.datetimes(timezones=offsets)),
        (time, st.times(timezones=offsets)),
        (date, st.dates()),
        (timedelta, st.timedeltas()),
        (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
        (UUID, st.uuids()),
        (bytes, st.binary()),
        (bytearray, st.binary().map(bytearray)),
        (frozenset[str], st.frozensets(st.text())),
        (set[int], st.sets(st.integers())),
        (tuple[int, str], st.tuples(st.integers(), st.text())),
        (Point, st.builds(Point, st.integers(), st.integers())),
        (
            Item,
            st.builds(Item, st.text(), st.decimals(allow_nan=False, allow_infinity=False), st.frozensets(st.text())),
        ),
        (Color, st.sampled_from(Color)),
        (Level, st.sampled_from(Level)),
        (Shade, st.sampled_from(Shade)),
        (float, st.floats(allow_nan=False, allow_infinity=False)),
        (dict[str, list[Decimal | None]], st.just({"a": [Decimal("1.10"), None]})),
    ],
    ids=str,
)
def test_typed_values_come_back_equal(type: Any, values: st.SearchStrategy[Any]) -> None:
    @given(values)
    def holds(value: object) -> None:
        back = decode(encode(value), type)
        assert back == value
        assert back.__class__ is value.__class__

    holds()


def test_an_aware_datetime_keeps_its_offset() -> None:
    summer = datetime(2024, 7, 1, 12, tzinfo=PARIS)
    back = decode(encode(summer), datetime)
    assert back == summer
    assert back.utcoffset() == timedelta(hours=2)


def test_both_hours_of_a_clock_change_stay_apart() -> None:
    first = datetime(2024, 10, 27, 2, 30, tzinfo=PARIS)
    for moment in (first, first.replace(fold=1)):
        assert decode(encode(moment), datetime).timestamp() == moment.timestamp()


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (Order, Order(7, [Item("pen", Decimal("1.20"), frozenset({"a"}))])),
        (Order, Order(7, note="hi")),
        (Order | Refund, Refund(8)),
        (Pair, Pair([1], None)),
        (Basket, {"items": ["a"]}),
        (Customer, Customer(name="kim", since=datetime(2024, 1, 1, tzinfo=UTC), groups={"x", "y"})),
        (list[Customer], [Customer(name="kim"), Customer(name="lee")]),
        (dict[str, Customer], {"a": Customer(name="kim")}),
        (Customer | None, Customer(name="kim")),
        (Customer | None, None),
        (Strict, STRICT),
        (None, None),
        (dict[str, object], {"a": [1]}),
    ],
)
def test_records_and_models_come_back_equal(type: Any, value: object) -> None:
    assert decode(encode(value), type) == value


def test_a_model_is_also_read_by_its_alias() -> None:
    text = b'{"when":"2024-01-01T00:00:00Z","days":[1],"ID":5}'
    assert decode(text, Strict).identity == 5


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("a"), "a"),
        (Whole(5), 5),
        (Real(1.5), 1.5),
        (Level.HIGH, 3),
        (Shade.DARK, "dark"),
        ({Text("k"): Whole(2**70)}, {"k": 2**70}),
        ({Shade.DARK: 1}, {"dark": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Moment(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"),
        (memoryview(b"abc"), "YWJj"),
    ],
)
def test_subclasses_are_written_as_what_they_are(value: object, plain: object) -> None:
    assert decode(encode(value)) == plain
    assert decode(encode([value])) == [plain]


def test_a_string_with_nul_is_accepted_and_returned_equal() -> None:
    assert decode(encode({"a\0b": "c\0d"})) == {"a\0b": "c\0d"}


def test_integers_beyond_64_bits_are_accepted() -> None:
    for value in (2**63, 2**64, -(2**63) - 1, 10**4299, 10**4300 - 1, -(10**4299) + 1):
        assert decode(encode(value)) == value
        assert decode(encode([value]), list[int]) == [value]


def refusal(value: object, where: str = "value") -> NotSerializable:
    """Every way to encode refuses a value alike."""
    texts = set()
    for way in (encode, digest, encode_with_digest):
        with pytest.raises(NotSerializable) as caught:
            way(value, where)
        texts.add((type(caught.value), str(caught.value), caught.value.path))
    assert len(texts) == 1
    return caught.value


def test_the_refusal_names_the_type_the_path_and_the_place() -> None:
    error = refusal({"items": [1, 2, 3, {"fh": io.TextIOWrapper(io.BytesIO())}]}, "result of step 'fetch'")
    assert str(error) == "object of type TextIOWrapper at $.items[3].fh in result of step 'fetch'"
    assert error.path == "$.items[3].fh"
    assert isinstance(error, BadInput)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: 1,
        print,
        int,
        1j,
        range(3),
        iter([]),
        ...,
        msgspec.Raw(b"{"),
        Path("/"),
        {}.keys(),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    for wrapped, path in ((value, "$"), ([value], "$[0]"), (Pair(1, value), "$.right"), ({"a b": value}, "$['a b']")):
        error = refusal(wrapped)
        assert type(error) is NotSerializable
        assert error.path == path


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf"), Real("nan"), Decimal("NaN"), Decimal("-Infinity")])
def test_nan_and_infinity_are_never_written(value: object) -> None:
    name = "NaN" if str(value) in ("nan", "NaN") else "Infinity"
    assert str(refusal(value)) == f"{name} at $ in value"
    assert str(refusal({"score": value})) == f"{name} at $.score in value"
    assert refusal([Order(1, note=value)]).path == "$[0].note"  # type: ignore[arg-type]
    assert refusal((Item("pen", value),)).path == "$[0].price"  # type: ignore[arg-type]
    assert refusal({"a": {1, value}}).path.startswith("$.a[")
    assert refusal([Point(1, value)]).path == "$[0][1]"  # type: ignore[arg-type]


def test_a_model_cannot_hide_what_json_cannot_carry() -> None:
    """Its serializer alone would write NaN as null."""
    assert refusal([Customer(name="kim", extra={"a": NAN})]).path == "$[0].extra.a"
    assert type(refusal(Customer(name="kim", since=NAIVE))) is NaiveDatetime
    assert "object" in str(refusal(Customer(name="kim", extra=object())))
    assert type(refusal(Customer(name="kim", extra=nested(100)))) is TooDeep
    assert "Unicode" in str(refusal(Customer(name="\ud800")))


@pytest.mark.parametrize("value", ["\ud800", "ok \udfff", Text("\ud800"), "é\ud800"])
def test_a_lone_surrogate_is_refused_as_invalid_unicode(value: str) -> None:
    assert "invalid Unicode" in str(refusal(value))
    assert refusal([{"a": value}]).path == "$[0].a"
    assert refusal([{value: 1}]).path == "$[0]"


@pytest.mark.parametrize(
    "value",
    [NAIVE, time(12), Moment(2024, 1, 1), time(12, tzinfo=PARIS)],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_a_naive_datetime_or_time_is_refused_with_the_way_out(value: object) -> None:
    error = refusal({"at": value}, "input")
    assert type(error) is NaiveDatetime
    assert " at $.at in input: add a timezone" in str(error)


def test_an_offset_with_seconds_is_refused_since_json_would_move_the_instant() -> None:
    assert "0:00:30" in str(refusal(datetime(2024, 1, 1, tzinfo=timezone(timedelta(seconds=30)))))


@pytest.mark.parametrize(
    "key",
    [1, None, True, 1.5, (1, 2), Color.RED, Level.HIGH, b"a", date(2024, 1, 1)],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_dict_keys_that_are_not_strings_are_refused(key: object) -> None:
    error = refusal({"a": [{key: 1}]})
    assert f"dict key of type {type(key).__name__}" in str(error)
    assert error.path == "$.a[0]"


@pytest.mark.parametrize(
    "make", [nested, lambda depth: nested(depth - 1, {}), lambda depth: nested(depth - 2, Pair(nested(1), 1))]
)
def test_sixty_four_levels_are_carried_and_sixty_five_are_not(make: Callable[[int], object]) -> None:
    value = make(64)
    assert encode(value)
    error = refusal(make(65))
    assert type(error) is TooDeep
    assert error.path.count("[0]") >= 62


def test_bottomless_values_are_refused_and_the_process_lives() -> None:
    assert type(refusal(nested(100_000))) is TooDeep
    assert type(refusal(cycle())) is TooDeep


def test_a_value_that_shares_its_parts_a_billion_times_is_refused_at_once() -> None:
    laughs: Any = []
    records: Any = None
    for _ in range(60):
        laughs = [laughs, laughs]
        records = Pair(records, records)
    for value in (laughs, records, ["x" * 1_000_000] * 100_000, {"a": [b"x" * 1_000_000] * 10_000}):
        with pytest.raises(PayloadTooLarge, match="more than 4,194,304 > 2,097,152 at input"):
            encode(value, "input")


@pytest.mark.parametrize(
    "value", [10**4300, -(10**4299), Whole(10**4300), 10**100_000], ids=["one", "minus", "subclass", "huge"]
)
def test_an_integer_above_the_limit_is_refused(value: int) -> None:
    assert type(refusal(value)) is NumberTooLong
    assert refusal({"n": [value]}).path == "$.n[0]"


def test_one_byte_above_the_limit_is_refused_and_the_limit_is_not() -> None:
    quotes = 2
    assert len(encode("x" * (codec.MAX_BYTES - quotes))) == 2_097_152
    error = refusal("x" * (codec.MAX_BYTES - quotes + 1), "input")
    assert type(error) is PayloadTooLarge
    assert str(error) == "2,097,153 > 2,097,152 at input"
    assert str(refusal(["x" * (codec.MAX_BYTES - 3)], "input")) == "2,097,153 > 2,097,152 at input"


@pytest.mark.parametrize(
    ("data", "type", "parts"),
    [
        (
            b'{"items":[{"name":1,"price":"1"}],"type":"order","orderId":1}',
            Order,
            ["$.items[0].name", "`str`", "`int`"],
        ),
        (b'"x"', int, ["at $", "`int`", "`str`"]),
        (b"1", None, ["`null`", "`int`"]),
        (b'{"a":[{"name":5}]}', dict[str, list[Customer]], ["$[...][0]", "valid string", "name"]),
        (b'"2024"', datetime, ["RFC3339"]),
        (b'{"items":[], "note":1}', Basket, ["$.note"]),
        (b"", Any, ["truncated"]),
        (b'{"a":', Any, ["truncated"]),
        (b"1 2", Any, ["byte"]),
        (b"NaN", Any, ["byte 0"]),
        (b"1e999", Any, ["out of range"]),
        (b'"\xff"', Any, ["Unicode"]),
        ('"\ud800"', Any, ["Unicode"]),
        (b'"\\ud800"', Any, ["the result"]),
    ],
)
def test_what_does_not_fit_is_undecodable_and_the_error_says_why(
    data: bytes | str, type: Any, parts: list[str]
) -> None:
    for way in (lambda: decode(data, type, "the result"), lambda: codec.decoder(type, "the result")(data)):
        with pytest.raises(UndecodablePayload) as caught:
            way()
        for part in ["the result", *parts]:
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_text_and_bytes_are_read_alike() -> None:
    assert decode('["é"]') == decode('["é"]'.encode()) == ["é"]


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_a_depth_bomb_is_too_deep_and_the_process_lives(data: bytes) -> None:
    with pytest.raises(TooDeep, match="in body"):
        decode(data, where="body")


def test_a_number_of_five_thousand_digits_is_too_long() -> None:
    with pytest.raises(NumberTooLong) as caught:
        decode(b'{"a":[' + b"1" * 5000 + b"]}", dict[str, list[int]])
    assert caught.value.path == "$[...][0]"


@pytest.mark.parametrize(
    "type",
    [
        object.__class__,
        io.TextIOWrapper,
        list[io.TextIOWrapper],
        dict[str, io.TextIOWrapper | None],
        Callable[[], int],
        TypeVar("T"),
        list[TypeVar("T")],  # type: ignore[misc]
        dataclasses.make_dataclass("A", ["a"]) | dataclasses.make_dataclass("B", ["b"]),
        dataclasses.make_dataclass("Lost", [("a", "Nowhere")]),
        "int",
        complex,
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_a_type_that_json_cannot_fill_is_refused_when_the_decoder_is_made(type: Any) -> None:
    with pytest.raises(DefinitionError, match=r"cannot be decoded from JSON.*tagged Struct union"):
        codec.decoder(type)
    with pytest.raises(DefinitionError):
        decode(b"null", type)


def test_a_recursive_type_is_fine() -> None:
    assert decode(b'{"type":"A","message":"m","cause":{"type":"B","message":"n"}}', ErrorData).cause.type == "B"


def test_an_unhashable_type_works_too() -> None:
    assert decode(b"1", Annotated[int, []]) == 1


@given(st.binary() | json_values.map(encode).flatmap(lambda data: st.integers(0, len(data)).map(lambda n: data[:n])))
@settings(max_examples=200)
def test_any_bytes_give_a_value_or_a_typed_error(data: bytes) -> None:
    for type in (Any, Order, Customer, Basket, list[datetime], dict[str, Decimal], ErrorData):
        try:
            decode(data, type)
        except UndecodablePayload:
            pass


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(json_values)
def test_key_order_does_not_change_the_digest_but_the_text_keeps_it(value: Any) -> None:
    data, number = encode_with_digest(value)
    assert data == encode(value)
    assert number == digest(value) == digest(shuffled(value)) == digest(decode(data))
    assert -(2**63) <= number < 2**63


@given(json_values, json_values)
def test_different_values_have_different_digests(one: object, other: object) -> None:
    assert (digest(one) == digest(other)) == (digest([one]) == digest([other]))
    if one != other:
        assert digest(one) != digest(other)


def test_a_digest_is_fixed_for_ever() -> None:
    """Stored digests are compared with new ones, so a change here needs a migration."""
    assert digest([[1, "abc"], {}]) == 8648131571800491319
    assert digest({"b": {"x", "y"}, "a": 1.5}) == -4441821545174318850


def test_a_record_has_the_digest_of_its_json() -> None:
    for value in (
        Order(1, [Item("pen", Decimal(1))]),
        Customer(name="kim"),
        STRICT,
    ):
        assert digest(value) == digest(decode(encode(value)))


HASH_SEED_PROBE = """
import sys
sys.path[:0] = {path!r}
from test_codec import *
names = frozenset("abcdefgh")
print([digest(value) for value in (
    {{"z": 1, "a": {{"y": 2, "b": 3}}}}, set(names), {{"a": [{{1, "a", None, 2.5, b"x"}}]}},
    {{frozenset("abc"), frozenset("xyz")}}, {{("a", frozenset("mno")), ("b", 1)}}, Item("x", Decimal(1), names),
    Order(1, [Item("x", Decimal(1), names)]),
    Pair(names, [names]), Customer(name="x", groups=set(names), extra=[names]), {{Color.RED, "q", "r"}}, "text", 5,
)])
"""


def test_equal_values_have_equal_digests_in_every_process() -> None:
    code = HASH_SEED_PROBE.format(path=[str(Path(__file__).parent), *sys.path])
    outputs = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        outputs.add(run.stdout)
    assert len(outputs) == 1
    numbers = json.loads(outputs.pop())
    assert len(set(numbers)) == len(numbers)


class CardDeclined(Exception):
    def __init__(self, card: str, reason: str) -> None:
        super().__init__(f"card {card}: {reason}")
        self.card = card
        self.reason = reason


class Gone(LookupError):
    def __str__(self) -> str:
        return f"gone for {self.seconds} s"

    def __init__(self, *, seconds: int) -> None:
        self.seconds = seconds


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise RuntimeError("no state")


class Unmakeable(Exception):
    def __init__(self, handle: object) -> None:
        self.number = id(handle)

    def __str__(self) -> str:
        return f"unlike any other: {self.__dict__.pop('number', None)}"


REGISTERED = {codec.qualified_name(cls): cls for cls in (CardDeclined, Gone, Unmakeable)}


def stored(exc: BaseException) -> ErrorData:
    """The data of an exception after a trip through the store."""
    data = error_to_data(exc)
    back: ErrorData = decode(encode(data), ErrorData)
    assert back == data
    return back


def raised(make: Callable[[], object]) -> BaseException:
    try:
        make()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "make",
    [
        lambda: os.environ["MISSING_NAME"],
        lambda: {(1, 3)}.remove((1, 2)),
        lambda: int("x"),
        lambda: 1 / 0,
        lambda: os.stat("/no/such/file"),
        lambda: [].pop(),
        lambda: __import__("no_such_module"),
        lambda: getattr(None, "x" * 2),
        lambda: b"\xff".decode("ascii"),
        lambda: (_ for _ in ()).throw(ValueError()),
        lambda: (_ for _ in ()).throw(TimeoutError("slow")),
        lambda: (_ for _ in ()).throw(ValueError("a", 2, None)),
        lambda: (_ for _ in ()).throw(ValueError(object)),
        lambda: (_ for _ in ()).throw(ValueError({"a": [1]})),
    ],
)
def test_a_builtin_error_comes_back_as_its_class_with_its_text(make: Callable[[], object]) -> None:
    error = raised(make)
    back = error_from_data(stored(error), {})
    if isinstance(error, UnicodeDecodeError):
        assert (type(back), str(back)) == (StepFailed, f"UnicodeDecodeError: {error}"), "bytes are not JSON arguments"
        return
    assert type(back) is type(error)
    assert str(back) in (str(error), repr(str(error)))


def test_an_os_error_keeps_its_number_and_file() -> None:
    back = error_from_data(stored(raised(lambda: os.stat("/no/such/file"))), {})
    assert isinstance(back, FileNotFoundError)
    assert (back.errno, back.filename) == (2, "/no/such/file")


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("shop.Oops", "no"),
        errors.NoSuchRun("ord-7"),
        errors.RunTerminal("ord-7", "completed"),
        errors.NotSerializable("NaN at $.a", "$.a"),
        errors.ChildFailed("c-1", "failed", "why"),
        errors.StepTimeout("after 5 s"),
        errors.Rollback("undo"),
    ],
)
def test_our_own_errors_come_back_with_their_attributes(error: Exception) -> None:
    back = error_from_data(stored(error), {})
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_registered_class_comes_back_as_itself_and_an_unregistered_one_as_step_failed() -> None:
    data = stored(CardDeclined("4242", "no funds"))
    assert data.type.endswith("test_codec.CardDeclined")
    back = error_from_data(data, REGISTERED)
    assert type(back) is CardDeclined
    assert (str(back), back.card, back.reason) == ("card 4242: no funds", "4242", "no funds")
    stranger = error_from_data(data, {})
    assert type(stranger) is StepFailed
    assert (stranger.type_name, stranger.message) == (data.type, "card 4242: no funds")


def test_an_error_whose_text_depends_on_keyword_arguments_comes_back() -> None:
    back = error_from_data(stored(Gone(seconds=5)), REGISTERED)
    assert type(back) is Gone
    assert str(back) == "gone for 5 s"


def test_a_class_that_cannot_be_made_again_becomes_step_failed() -> None:
    assert (
        type(
            error_from_data(ErrorData(type=codec.qualified_name(Unmakeable), message="unlike any other: 1"), REGISTERED)
        )
        is StepFailed
    )


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration(), StopAsyncIteration()]
)
def test_an_error_that_would_end_the_process_or_the_coroutine_is_never_raised_again(error: BaseException) -> None:
    back = error_from_data(stored(error), {})
    assert type(back) is StepFailed
    assert back.type_name == type(error).__name__


@pytest.mark.parametrize(
    "name",
    [
        "print",
        "int",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "holdfast.errors.Mapping",
        "antigravity.X",
        "",
        ".",
        "holdfast.errors.ContinueAsNew",
        "__import__",
    ],
)
def test_data_never_names_what_is_imported_or_called(name: str) -> None:
    back = error_from_data(
        ErrorData(type=name, message="m", args=["id"], attributes={"args": [1], "__class__": "x"}), {}
    )
    assert type(back) is StepFailed
    assert "antigravity" not in sys.modules


def test_hostile_attributes_do_not_replace_what_an_exception_is() -> None:
    data = ErrorData(
        type="ValueError", message="m", args=["m"], attributes={"with_traceback": 1, "__cause__": 2, "ok": 3}
    )
    back = error_from_data(data, {})
    assert vars(back) == {"ok": 3}


def test_the_data_of_an_error_says_what_a_reader_needs() -> None:
    def inner() -> None:
        raise ValueError("bad", 7)

    data = error_to_data(raised(inner), retryable=False)
    assert (data.type, data.message, data.args, data.retryable) == ("ValueError", "('bad', 7)", ["bad", 7], False)
    assert "in inner" in data.traceback
    assert data.traceback.endswith("ValueError: ('bad', 7)")
    assert data.bases == ["ValueError", "Exception"]
    assert error_to_data(errors.HeartbeatTimeout("x")).bases == [
        "HeartbeatTimeout",
        "StepTimeout",
        "StepError",
        "HoldfastError",
        "TimeoutError",
        "OSError",
        "Exception",
    ]


def test_causes_are_kept_five_deep() -> None:
    error: BaseException = ValueError("0")
    for number in range(1, 10):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    back: BaseException | None = error_from_data(stored(error), {})
    texts = []
    while back is not None:
        texts.append(str(back))
        back = back.__cause__
    assert texts == ["9", "8", "7", "6", "5", "4"]


def test_the_context_is_the_cause_unless_it_was_suppressed() -> None:
    def implicit() -> None:
        try:
            int("x")
        except ValueError:
            raise KeyError("k")  # noqa: B904

    def suppressed() -> None:
        try:
            int("x")
        except ValueError:
            raise KeyError("k") from None

    assert stored(raised(implicit)).cause.type == "ValueError"  # type: ignore[union-attr]
    assert stored(raised(suppressed)).cause is None


def test_a_cycle_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert encode(error_to_data(one))


def test_a_long_traceback_keeps_its_innermost_frames() -> None:
    def down(depth: int) -> None:
        down(depth - 1) if depth % 2 else other(depth - 1)

    def other(depth: int) -> None:
        if depth < 0:
            innermost()
        down(depth - 1) if depth % 3 else other(depth - 1)

    def innermost() -> None:
        raise ValueError("x" * 100_000 + "é")

    data = stored(raised(lambda: down(300)))
    assert len(data.traceback.encode()) <= 8192
    assert len(data.message.encode()) <= 8192
    assert "in innermost" in data.traceback


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Broken(), "<unprintable Broken: its __str__ raised RuntimeError>"),
        (ValueError("a\ud800b"), "a?b"),
        (ValueError(NAN), "nan"),
        (ValueError(Broken), None),
        (ValueError(nested(60)), None),
        (ValueError(nested(100_000 - 99_000)), None),
        (ValueError(cycle()), None),
        (ValueError("x" * 3_000_000), None),
        (ValueError(*["x" * 60_000] * 3), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_exception_is_too_broken_to_be_stored(error: BaseException, message: str | None) -> None:
    outermost = error
    for _ in range(5):
        outer = ValueError("outer")
        outer.__cause__ = outermost
        outermost = outer
    assert encode({"record": [error_to_data(outermost)]})
    data = stored(error)
    assert message is None or data.message == message
    assert isinstance(error_from_data(data, {}), Exception)


def test_attributes_are_kept_only_if_json_carries_them_unchanged() -> None:
    error = ValueError("x")
    error.status = 404  # type: ignore[attr-defined]
    error.point = (1, 2)  # type: ignore[attr-defined]
    error.handle = io.BytesIO()  # type: ignore[attr-defined]
    error._secret = "s"  # type: ignore[attr-defined]
    assert stored(error).attributes == {"status": 404}


def test_a_group_comes_back_with_its_members_and_names_them() -> None:
    group = ExceptionGroup("both", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
    data = stored(group)
    assert (
        data.message == "both (2 sub-exceptions): ValueError: a; ExceptionGroup: inner (1 sub-exception): KeyError: 'b'"
    )
    back = error_from_data(data, {})
    assert isinstance(back, ExceptionGroup)
    assert repr(back) == repr(group)
    assert str(back) == "both (2 sub-exceptions)"


def test_a_huge_group_keeps_as_many_members_as_fit_and_says_so() -> None:
    members = [ValueError("\x01" * 70_000, "y" * 60_000) for _ in range(100)]
    data = stored(ExceptionGroup("many", [ExceptionGroup("half", members[:50]), ExceptionGroup("rest", members[50:])]))
    assert len(encode(data)) < 2_000_000
    back = error_from_data(data, {})
    assert isinstance(back, ExceptionGroup)
    assert any("left out" in note for group in (back, *back.exceptions) for note in getattr(group, "__notes__", ()))


def test_notes_come_back() -> None:
    error = ValueError("x")
    error.add_note("order 7")
    error.__notes__.append(5)  # type: ignore[arg-type]
    data = stored(error)
    assert data.traceback.endswith("ValueError: x\norder 7")
    assert error_from_data(data, {}).__notes__ == ["order 7"]


def test_a_qualified_name_has_its_module_unless_it_is_builtin() -> None:
    assert codec.qualified_name(ValueError) == "ValueError"
    assert codec.qualified_name(errors.StepFailed) == "holdfast.errors.StepFailed"


def test_the_codec_works_without_pydantic() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None; from holdfast.payloads import codec; "
        "print(codec.decode(codec.encode([1])))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.stdout == "[1]\n", run.stderr


_PLAIN_VALUES = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), _PLAIN_VALUES))
def test_the_short_way_for_plain_inputs_gives_the_same_text_and_digest(values: dict[str, Any]) -> None:
    kinds = [(name, Any) for name in sorted(values)]
    record = msgspec.defstruct("Input", kinds, kw_only=True)(**values)
    outcomes: list[Any] = []
    for named, recorded in ((encode_named, encode_record), (encode, encode_with_digest)):
        try:
            outcomes.append((named(values, "it"), recorded(record, "it")))
        except NotSerializable as error:
            outcomes.append((str(error), error.path))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "value",
    ["\ud800", "x" * (codec.MAX_BYTES + 1), float("nan"), 10**5000, object()],
    ids=["text", "large", "nan", "long", "object"],
)
def test_the_short_way_for_plain_inputs_refuses_what_the_long_one_does(value: object) -> None:
    with pytest.raises(BadInput) as short:
        encode_named({"a": value}, "it")
    with pytest.raises(BadInput) as long:
        encode({"a": value}, "it")
    assert (type(short.value), str(short.value)) == (type(long.value), str(long.value))
