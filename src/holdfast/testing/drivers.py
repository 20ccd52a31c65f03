"""The contract of key-value drivers as tests, and a driver with faults for tests of what runs on one.

A test module makes one class from `DriverConformance` and gives it what it needs to know:

    class TestMyDriver(DriverConformance):
        @pytest.fixture
        def open_driver(self, tmp_path): ...   # a function that opens the key space, empty at first; called again it
                                               # makes another driver of the same one. It may be a coroutine function

Everything else is optional: see the methods of the class.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import NotAsExpected, OutcomeUnknown, PayloadTooLarge, StoreError
from holdfast.kv.driver import Driver, Expected, Pair, answer

Open = Callable[[], Driver | Awaitable[Driver]]
_SOME = {b"a": b"1", b"ab": b"2", b"ab\x00": b"3", b"ab\xff": b"4", b"ac": b"5", b"b": b"6", b"\xff\xff": b"7"}
_AT, _PAST = (datetime(year, 1, 2, 3, 4, 5, 678901, UTC) for year in (2030, 2020))


class DriverConformance:
    """Everything a driver must do."""

    @pytest.fixture
    def open_driver(self) -> Open:
        raise NotImplementedError("return a function that opens the key space")

    def program(self) -> str | None:
        """Return Python that assigns `driver`, what `open_driver()` gives, in another process; None to skip."""
        return None

    def fail_next_batch(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the next batch fail while it is being written, with nothing of it kept."""
        pytest.skip("no way to let a batch of this driver fail")

    def lose_next_answer(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the next batch raise after it was handed to the store."""
        pytest.skip("no way to lose the answer to a batch of this driver")

    # Reading and writing.

    async def test_what_a_batch_put_is_there(self, open_driver: Open) -> None:
        driver = await answer(open_driver())
        await answer(driver.batch(_SOME))
        assert {key: await answer(driver.get(key)) for key in _SOME} == _SOME
        assert await answer(driver.get(b"aa")) is None
        await answer(driver.batch({b"a": b"", b"new": b"\x00\xff"}, [b"b", b"never"]))
        assert [await answer(driver.get(key)) for key in (b"a", b"new", b"b")] == [b"", b"\x00\xff", None]
        await answer(driver.close())

    async def test_a_list_is_in_the_order_of_bytes(self, open_driver: Open) -> None:
        """S1-6 Whatever order they were put in; a longer key comes after the key that it begins with."""
        driver = await answer(open_driver())
        keys = [bytes([first, second]) for first in (255, 0, 127, 128, 9, 10) for second in (255, 0, 128)]
        keys += [b"\x00", b"\x80", b"a", b"B", b"b", b"A"]
        for key in keys:
            await answer(driver.batch({key: key}))
        many = {b"many%03d" % (number * 37 % 200): b"" for number in range(200)}
        await answer(driver.batch(many))
        wanted = sorted({**dict(zip(keys, keys, strict=True)), **many}.items())
        assert list(await answer(driver.list(b""))) == wanted
        await answer(driver.close())

    async def test_a_list_has_only_what_begins_with_exactly_these_bytes(self, open_driver: Open) -> None:
        """S1-8"""
        driver = await answer(open_driver())
        await answer(driver.batch(_SOME))
        for prefix in (b"a", b"ab", b"ab\xff", b"\xff", b"\xff\xff", b"c", b""):
            wanted = [(key, value) for key, value in sorted(_SOME.items()) if key.startswith(prefix)]
            assert list(await answer(driver.list(prefix))) == wanted, prefix
        await answer(driver.close())

    async def test_what_is_durable_is_there_when_it_is_opened_again(self, open_driver: Open) -> None:
        driver = await answer(open_driver())
        await answer(driver.batch(_SOME))
        await answer(driver.batch({b"a": b"changed"}, [b"ab"]))
        await answer(driver.close())
        await answer(driver.close())
        driver = await answer(open_driver())
        assert dict(await answer(driver.list(b""))) == {
            **{k: v for k, v in _SOME.items() if k != b"ab"},
            b"a": b"changed",
        }
        await answer(driver.close())

    async def test_a_driver_that_excludes_others_is_open_once(self, open_driver: Open) -> None:
        """What it says of that is believed: a process that had the key space before is known to be gone."""
        driver = await answer(open_driver())
        if driver.exclusive:
            with pytest.raises(StoreError):
                await answer((await answer(open_driver())).close())
        await answer(driver.close())

    async def test_two_drivers_of_a_key_space_see_what_the_other_wrote(self, open_driver: Open) -> None:
        """S1-4 S1-5 Whatever they have read before: messages and their alarms come from outside.

        So a driver that compares is fenced by what another wrote.
        """
        first = await answer(open_driver())
        if first.exclusive:
            await answer(first.close())
            pytest.skip("no two of these drivers are open at once")
        second = await answer(open_driver())
        wanted = {b"epoch": b"0", b"gone0": b"", b"gone1": b""}
        await answer(first.batch(wanted))
        for number, (writes, other) in enumerate(((first, second), (second, first))):
            assert dict(await answer(other.list(b""))) == wanted
            assert await answer(other.get_alarm()) == (_AT if number else None)
            before, wanted = wanted, {**wanted, b"epoch": b"%d" % (number + 1), b"message": b"%d" % number}
            del wanted[b"gone%d" % number]
            await answer(writes.batch(wanted, [b"gone%d" % number]))
            await answer(writes.set_alarm(_AT + number * timedelta(days=1)))
            if other.compares:
                with pytest.raises(NotAsExpected):
                    await answer(other.batch({b"late": b"1"}, [], {b"epoch": before[b"epoch"]}))
            assert await answer(other.get(b"message")) == b"%d" % number
            assert dict(await answer(other.list(b""))) == wanted
            assert await answer(other.get_alarm()) == _AT + number * timedelta(days=1)
            await answer(other.batch({b"late": b"1"}, [], {b"epoch": wanted[b"epoch"]} if other.compares else None))
            wanted[b"late"] = b"1"
        await answer(first.close())
        await answer(second.close())

    # Limits.

    async def test_what_is_declared_fits(self, open_driver: Open) -> None:
        """A key as long as declared is kept whole: two that differ in their last byte are two."""
        driver = await answer(open_driver())
        longest = [b"k" * (driver.max_key - 1) + last for last in (b"1", b"2")]
        size = min(driver.max_value, 4 * 1024 * 1024)
        await answer(driver.batch(dict.fromkeys(longest, b"v" * size)))
        assert [key for key, _ in await answer(driver.list(b"k"))] == longest
        assert await answer(driver.get(longest[0])) == b"v" * size
        count = min(driver.max_batch, 20_000)
        await answer(driver.batch({b"n%05d" % number: b"" for number in range(count)}))
        assert len(await answer(driver.list(b"n"))) == count
        await answer(driver.close())

    @pytest.mark.parametrize("what", ["key", "value", "batch"])
    async def test_what_is_larger_than_declared_is_refused_and_nothing_of_it_is_kept(
        self, open_driver: Open, what: str
    ) -> None:
        driver = await answer(open_driver())
        puts = {b"other": b"1"}
        if what == "key":
            puts[b"k" * (driver.max_key + 1)] = b"1"
        elif what == "value":
            puts[b"v"] = bytes(driver.max_value + 1)
        else:
            puts |= {b"n%d" % number: b"" for number in range(driver.max_batch)}
        with pytest.raises(PayloadTooLarge):
            await answer(driver.batch(puts))
        assert list(await answer(driver.list(b""))) == []
        await answer(driver.close())

    # All or nothing.

    async def test_a_batch_is_made_only_if_it_finds_what_it_expects(self, open_driver: Open) -> None:
        driver = await answer(open_driver())
        if not driver.compares:
            await answer(driver.close())
            pytest.skip("this driver does not compare")
        await answer(driver.batch({b"epoch": b"1"}, expect={b"epoch": None}))
        refused: list[Expected] = [
            {b"epoch": None}, {b"epoch": b"2"}, {b"epoch": b"1", b"x": b""}, {b"x": None, b"epoch": b"0"}
        ]  # fmt: skip
        for expected in refused:
            with pytest.raises(NotAsExpected):
                await answer(driver.batch({b"y": b"9"}, [b"epoch"], expected))
        assert list(await answer(driver.list(b""))) == [(b"epoch", b"1")]
        await answer(driver.batch({b"epoch": b"2"}, [], {b"epoch": b"1", b"x": None}))
        assert await answer(driver.get(b"epoch")) == b"2"
        await answer(driver.close())

    async def test_batches_at_the_same_time_are_made_one_after_another(self, open_driver: Open) -> None:
        """S1-7 Of those that expect the same one is made; each is made whole."""
        driver = await answer(open_driver())

        async def write(number: int) -> bool:
            order = range(20) if number % 2 else range(19, -1, -1)
            puts = {b"k%d" % each: b"%d" % number for each in order}
            try:
                await answer(driver.batch(puts, [], {b"k0": None} if driver.compares else None))
            except NotAsExpected:
                return False
            return True

        made = await asyncio.gather(*(write(number) for number in range(1, 6)))
        assert sum(made) == (1 if driver.compares else 5)
        assert len({value for _, value in await answer(driver.list(b"k"))}) == 1
        await answer(driver.close())

    async def test_a_list_shows_all_of_a_batch_or_nothing_of_it(self, open_driver: Open) -> None:
        """S1-7 Also of one that is made while it is listed."""
        driver = await answer(open_driver())
        names = [b"k%02d" % each for each in range(20)]
        await answer(driver.batch(dict.fromkeys(names, b"0")))
        seen: list[set[bytes]] = []

        async def write() -> None:
            for number in range(1, 20):
                await answer(driver.batch(dict.fromkeys(names, b"%d" % number)))
                await asyncio.sleep(0)

        async def look() -> None:
            for _ in range(40):
                seen.append({value for _, value in await answer(driver.list(b"k"))})
                await asyncio.sleep(0)

        await asyncio.gather(write(), look(), look())
        assert [values for values in seen if len(values) != 1] == []
        await answer(driver.close())

    async def test_nothing_is_kept_of_a_batch_that_failed(
        self, open_driver: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S1-7"""
        driver = await answer(open_driver())
        await answer(driver.batch(_SOME))
        with monkeypatch.context() as patch:
            self.fail_next_batch(driver, patch)
            with pytest.raises(StoreError) as caught:
                await answer(driver.batch({b"a": b"half", b"z": b"half"}, [b"b"]))
        assert not isinstance(caught.value, OutcomeUnknown)
        await self._is_as(driver, open_driver, _SOME)

    async def test_of_a_batch_whose_answer_is_lost_all_is_kept_or_nothing(
        self, open_driver: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S1-7"""
        driver = await answer(open_driver())
        await answer(driver.batch(_SOME))
        with monkeypatch.context() as patch:
            self.lose_next_answer(driver, patch)
            with pytest.raises(OutcomeUnknown):
                await answer(driver.batch({b"a": b"new", b"z": b"new"}, [b"b"]))
        await answer(driver.close())
        driver = await answer(open_driver())
        kept = dict(await answer(driver.list(b"")))
        made = {**{key: value for key, value in _SOME.items() if key != b"b"}, b"a": b"new", b"z": b"new"}
        assert kept in (_SOME, made)
        await self._is_as(driver, open_driver, kept)

    async def _is_as(self, driver: Driver, open_driver: Open, wanted: Mapping[bytes, bytes]) -> None:
        """The space has just this, takes the next batch, and has the same when it is opened again."""
        assert dict(await answer(driver.list(b""))) == wanted
        await answer(driver.batch({b"next": b"1"}))
        await answer(driver.close())
        driver = await answer(open_driver())
        assert dict(await answer(driver.list(b""))) == {**wanted, b"next": b"1"}
        await answer(driver.close())

    async def test_a_killed_process_leaves_whole_batches_and_all_that_it_was_told_of(self, open_driver: Open) -> None:
        """S1-5 S1-7 Killed while it writes batch after batch, each of which sets thirty keys to its number.

        After each the alarm is set that many seconds later: it is kept as the keys are.
        """
        program = self.program()
        if program is None:
            pytest.skip("this driver does not outlive its process")
        await answer((await answer(open_driver())).close())
        for _ in range(2):
            told = await asyncio.get_running_loop().run_in_executor(None, _killed, program)
            driver = await answer(open_driver())
            values = {value for _, value in await answer(driver.list(b"k"))}
            assert len(values) == 1, f"a batch was kept in part: {sorted(values)}"
            assert int(values.pop()) >= told
            alarm = await answer(driver.get_alarm())
            assert alarm is not None, "the alarm was lost"
            assert alarm >= _AT + timedelta(seconds=told)
            await answer(driver.close())

    # Alarms.

    async def test_there_is_one_alarm_and_it_is_kept(self, open_driver: Open) -> None:
        """S1-5 Set, set again, opened again, cleared; it is apart from the keys."""
        driver = await answer(open_driver())
        assert await answer(driver.get_alarm()) is None
        await answer(driver.clear_alarm())
        for at in (_AT + timedelta(days=1), _PAST, _AT):  # earlier, one that is over, and later again
            await answer(driver.set_alarm(at))
            assert await answer(driver.get_alarm()) == at
            assert await answer(driver.get_alarm()) == at, "an alarm is there until it is set or cleared"
        await answer(driver.batch({b"k": b"v"}))
        assert await answer(driver.get_alarm()) == _AT
        assert list(await answer(driver.list(b""))) == [(b"k", b"v")]
        await answer(driver.close())
        driver = await answer(open_driver())
        assert await answer(driver.get_alarm()) == _AT
        for _ in range(2):
            await answer(driver.clear_alarm())
            assert await answer(driver.get_alarm()) is None
        await answer(driver.close())
        driver = await answer(open_driver())
        assert await answer(driver.get_alarm()) is None
        await answer(driver.close())


_WRITER = """
import asyncio
from datetime import timedelta
from holdfast.kv.driver import answer
from holdfast.testing.drivers import _AT
{program}
async def write():
    opened = await answer(driver)
    start = int((await answer(opened.get(b"k00"))) or 0)
    for number in range(start + 1, start + 1_000_000):
        await answer(opened.batch({{b"k%02d" % each: b"%d" % number for each in range(30)}}))
        await answer(opened.set_alarm(_AT + timedelta(seconds=number)))
        print(number, flush=True)
asyncio.run(write())
"""


def _killed(program: str) -> int:
    """Let another process write batch after batch, kill it, and return the last that it was told of."""
    command = [sys.executable, "-c", _WRITER.format(program=program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own interpreter
    assert process.stdout is not None
    told = 0
    with process:
        for line in process.stdout:
            told = int(line)
            if told % 20 == 0:
                process.kill()
                break
        for line in process.stdout:
            told = int(line) if line.endswith("\n") else told
    return told


class FaultyDriver(Driver):
    """A driver around another that counts its batches and lets some of them fail, or loses the answer.

    A batch that breaks the contract, by putting and deleting one key, fails the test.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.max_key, self.max_value, self.max_batch = driver.max_key, driver.max_value, driver.max_batch
        self.compares = driver.compares
        self.batches: int = 0
        """How many batches were asked for."""
        self.reads: int = 0
        self.alarms: list[datetime | None] = []
        """Every alarm that was set, None where it was cleared."""
        self.fail: set[int] = set()
        """The numbers of batches of which nothing is written."""
        self.lose: set[int] = set()
        """The numbers of batches that are written and answered by OutcomeUnknown."""
        self.faults: int = 0
        """How many faults there were."""

    async def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return await answer(self._driver.get(key))

    async def list(self, prefix: bytes) -> Sequence[Pair]:
        self.reads += 1
        return await answer(self._driver.list(prefix))

    async def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        self.batches += 1
        assert not set(puts).intersection(deletes), "a key is both put and deleted"
        if self.batches in self.fail:
            self.faults += 1
            raise StoreError(f"batch {self.batches} is let fail by the test")
        await answer(self._driver.batch(puts, deletes, expect))
        if self.batches in self.lose:
            self.faults += 1
            raise OutcomeUnknown(f"the answer to batch {self.batches} is lost by the test")

    async def set_alarm(self, at: datetime) -> None:
        self.alarms.append(at)
        await answer(self._driver.set_alarm(at))

    async def clear_alarm(self) -> None:
        self.alarms.append(None)
        await answer(self._driver.clear_alarm())

    async def get_alarm(self) -> datetime | None:
        return await answer(self._driver.get_alarm())
