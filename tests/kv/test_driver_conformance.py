"""The conformance suite of drivers finds what it is there to find: each broken driver is caught by the test named."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from datetime import UTC, datetime

import pytest

from holdfast.errors import NotAsExpected, OutcomeUnknown, StoreError
from holdfast.kv import DirectoryDriver, MemoryDriver
from holdfast.kv.drivers.memory import SortedKeys
from holdfast.testing.drivers import DriverConformance


class WrongOrder(MemoryDriver):
    def list(self, prefix):
        return sorted(super().list(prefix), key=lambda pair: (len(pair[0]), pair[0]))


class InTheOrderOfText(MemoryDriver):
    def list(self, prefix):
        return sorted(super().list(prefix), key=lambda pair: pair[0].decode("latin-1").casefold())


class WiderPrefix(MemoryDriver):
    def list(self, prefix):
        end = prefix[:-1] + bytes([min(prefix[-1] + 1, 255)]) if prefix else b"\xff" * 9
        return [(key, value) for key, value in super().list(b"") if prefix <= key <= end]


class KeyByKey(MemoryDriver):
    """Writes one key after another and fails in between."""

    fails = False

    def batch(self, puts, deletes=(), expect=None):
        self._keys.check(expect)
        for place, (key, value) in enumerate(puts.items()):
            if self.fails and place == 1:
                self.fails = False
                raise StoreError("the connection broke")
            self._keys.apply({key: value}, ())
        self._keys.apply({}, deletes)


class Interleaving(MemoryDriver):
    """Lets other batches in between its keys."""

    compares = False

    async def batch(self, puts, deletes=(), expect=None):
        for key, value in puts.items():
            await asyncio.sleep(0)
            self._keys.apply({key: value}, ())
        self._keys.apply({}, deletes)


class ListsKeyByKey(MemoryDriver):
    """Lets batches in between the values that it lists."""

    async def list(self, prefix):
        found = []
        for key, _ in super().list(prefix):
            await asyncio.sleep(0)
            found.append((key, self._keys.values[key]))
        return found


class ListsOnePage(MemoryDriver):
    def list(self, prefix):
        return super().list(prefix)[:1000]


class ListsFromThePrefixOn(MemoryDriver):
    def list(self, prefix):
        return [pair for pair in super().list(b"") if pair[0] >= prefix]


class NothingIsAValueToo(MemoryDriver):
    def get(self, key):
        return super().get(key) or None


class MissesWhatIsNotThere(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        if any(key not in self._keys.values for key in deletes):
            raise StoreError("no such key")
        super().batch(puts, deletes, expect)


class ComparesBeforeItWaits(MemoryDriver):
    """Decides whether a batch may be made some time before it makes it."""

    async def batch(self, puts, deletes=(), expect=None):
        self._keys.check(expect)
        await asyncio.sleep(0)
        self._keys.apply(puts, deletes)


class WritesBeforeItCompares(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        held = {key: self._keys.values.get(key) for key in expect or {}}
        self._keys.apply(puts, ())
        for key, value in held.items():
            if value != (expect or {})[key]:
                raise NotAsExpected("too late")
        self._keys.apply({}, deletes)


class SaysThatItExcludesOthers(MemoryDriver):
    exclusive = True


class Twice(MemoryDriver):
    """Opened again it is another driver of the same key space."""

    def __init__(self, stored=None):
        super().__init__()
        self.stored = stored or MemoryDriver()

    def again(self):
        return type(self)(self.stored)

    def get(self, key):
        return self.stored.get(key)

    def list(self, prefix):
        return self.stored.list(prefix)

    def batch(self, puts, deletes=(), expect=None):
        self.stored.batch(puts, deletes, expect)

    def set_alarm(self, at):
        self.stored.set_alarm(at)

    def clear_alarm(self):
        self.stored.clear_alarm()

    def get_alarm(self):
        return self.stored.get_alarm()


class ReadsOnce(Twice):
    """Keeps what it has read, and what it wrote itself."""

    read = False

    def list(self, prefix):
        if not self.read:
            self.read = True
            self._keys.apply(dict(self.stored.list(b"")), ())
        return self._keys.list(prefix)

    def batch(self, puts, deletes=(), expect=None):
        super().batch(puts, deletes, expect)
        self._keys.apply(puts, deletes)


class RemembersValues(Twice):
    """Does not ask for a value again that it knows."""

    def get(self, key):
        if key not in self._keys.values and (found := super().get(key)) is not None:
            self._keys.apply({key: found}, ())
        return self._keys.values.get(key)

    def batch(self, puts, deletes=(), expect=None):
        super().batch(puts, deletes, expect)
        self._keys.apply(puts, deletes)


class ComparesWithWhatItRead(Twice):
    def list(self, prefix):
        found = super().list(prefix)
        self._keys.apply(dict(found), ())
        return found

    def batch(self, puts, deletes=(), expect=None):
        self._keys.check(expect)
        super().batch(puts, deletes)
        self._keys.apply(puts, deletes)


class HasItsOwnAlarm(Twice):
    def set_alarm(self, at):
        self._alarm = at

    def get_alarm(self):
        return self._alarm


class ClosesOnce(MemoryDriver):
    closed = False

    def close(self):
        assert not self.closed, "closed already"
        self.closed = True


class KeepsTheEarlierAlarm(MemoryDriver):
    def set_alarm(self, at):
        super().set_alarm(min(at, self._alarm or at))


class DropsPastAlarms(MemoryDriver):
    def get_alarm(self):
        found = super().get_alarm()
        return found if found is not None and found > datetime.now(UTC) else None


class TakesTheAlarmAway(MemoryDriver):
    def get_alarm(self):
        found, self._alarm = self._alarm, None
        return found


class ClearsNothing(MemoryDriver):
    def clear_alarm(self): ...


class AnAlarmMustBeThereToBeCleared(MemoryDriver):
    def clear_alarm(self):
        if self._alarm is None:
            raise StoreError("there is none")
        super().clear_alarm()


class LosesAlarm(MemoryDriver):
    def close(self):
        self._alarm = None


class AlarmOfWholeSeconds(MemoryDriver):
    def set_alarm(self, at):
        super().set_alarm(at.replace(microsecond=0))


class AlarmAmongKeys(MemoryDriver):
    def set_alarm(self, at):
        super().set_alarm(at)
        self._keys.apply({b"alarm": b"1"}, ())


class CutsLongKeys(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        super().batch({key[:100]: value for key, value in puts.items()}, deletes, expect)


class RefusesLongValues(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        if any(len(value) > 1024 * 1024 for value in puts.values()):
            raise StoreError("too long")
        super().batch(puts, deletes, expect)


class TakesAnything(MemoryDriver):
    max_value = 1024 * 1024

    def batch(self, puts, deletes=(), expect=None):
        self._keys.check(expect)
        self._keys.apply(puts, deletes)


class ComparesOnlyWhatIsThere(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        super().batch(puts, deletes, {key: value for key, value in (expect or {}).items() if value is not None})


class IgnoresExpectations(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        super().batch(puts, deletes)


class ForgetsDeletes(MemoryDriver):
    def batch(self, puts, deletes=(), expect=None):
        super().batch(puts, (), expect)


class Forgetful(MemoryDriver):
    def close(self):
        self._keys = SortedKeys()


class SaysNothingOfALostAnswer(MemoryDriver):
    """Keeps half of a batch whose answer is lost."""

    loses = False

    def batch(self, puts, deletes=(), expect=None):
        if not self.loses:
            super().batch(puts, deletes, expect)
            return
        self.loses = False
        self._keys.apply(puts, ())
        raise OutcomeUnknown("the connection broke")


def suite_for(driver):
    class Suite(DriverConformance):
        def fail_next_batch(self, driver, monkeypatch):
            if not isinstance(driver, KeyByKey):
                pytest.skip("does not fail")
            driver.fails = True

        def lose_next_answer(self, driver, monkeypatch):
            if not isinstance(driver, SaysNothingOfALostAnswer):
                pytest.skip("does not lose an answer")
            driver.loses = True

    opened = [driver]

    def open_driver():
        return opened.pop() if opened else getattr(driver, "again", lambda: driver)()

    return Suite(), open_driver


async def run(suite, name, opened, monkeypatch):
    name, _, what = name.rstrip("]").partition("[")
    test = getattr(suite, name)
    given = {"open_driver": opened, "monkeypatch": monkeypatch, "what": what}
    wanted = {name: given[name] for name in inspect.signature(test).parameters}
    made = test(**wanted)
    assert isinstance(made, Awaitable)
    await made


CAUGHT = [
    (WrongOrder, "test_a_list_is_in_the_order_of_bytes"),
    (InTheOrderOfText, "test_a_list_is_in_the_order_of_bytes"),
    (WiderPrefix, "test_a_list_has_only_what_begins_with_exactly_these_bytes"),
    (ListsFromThePrefixOn, "test_a_list_has_only_what_begins_with_exactly_these_bytes"),
    (ListsKeyByKey, "test_a_list_shows_all_of_a_batch_or_nothing_of_it"),
    (ListsOnePage, "test_what_is_declared_fits"),
    (NothingIsAValueToo, "test_what_a_batch_put_is_there"),
    (MissesWhatIsNotThere, "test_what_a_batch_put_is_there"),
    (ComparesBeforeItWaits, "test_batches_at_the_same_time_are_made_one_after_another"),
    (WritesBeforeItCompares, "test_a_batch_is_made_only_if_it_finds_what_it_expects"),
    (SaysThatItExcludesOthers, "test_a_driver_that_excludes_others_is_open_once"),
    (ReadsOnce, "test_two_drivers_of_a_key_space_see_what_the_other_wrote"),
    (RemembersValues, "test_two_drivers_of_a_key_space_see_what_the_other_wrote"),
    (ComparesWithWhatItRead, "test_two_drivers_of_a_key_space_see_what_the_other_wrote"),
    (HasItsOwnAlarm, "test_two_drivers_of_a_key_space_see_what_the_other_wrote"),
    (ClosesOnce, "test_what_is_durable_is_there_when_it_is_opened_again"),
    (KeepsTheEarlierAlarm, "test_there_is_one_alarm_and_it_is_kept"),
    (DropsPastAlarms, "test_there_is_one_alarm_and_it_is_kept"),
    (TakesTheAlarmAway, "test_there_is_one_alarm_and_it_is_kept"),
    (ClearsNothing, "test_there_is_one_alarm_and_it_is_kept"),
    (AnAlarmMustBeThereToBeCleared, "test_there_is_one_alarm_and_it_is_kept"),
    (KeyByKey, "test_nothing_is_kept_of_a_batch_that_failed"),
    (Interleaving, "test_batches_at_the_same_time_are_made_one_after_another"),
    (LosesAlarm, "test_there_is_one_alarm_and_it_is_kept"),
    (AlarmOfWholeSeconds, "test_there_is_one_alarm_and_it_is_kept"),
    (AlarmAmongKeys, "test_there_is_one_alarm_and_it_is_kept"),
    (CutsLongKeys, "test_what_is_declared_fits"),
    (RefusesLongValues, "test_what_is_declared_fits"),
    (TakesAnything, "test_what_is_larger_than_declared_is_refused_and_nothing_of_it_is_kept[key]"),
    (TakesAnything, "test_what_is_larger_than_declared_is_refused_and_nothing_of_it_is_kept[value]"),
    (TakesAnything, "test_what_is_larger_than_declared_is_refused_and_nothing_of_it_is_kept[batch]"),
    (ComparesOnlyWhatIsThere, "test_a_batch_is_made_only_if_it_finds_what_it_expects"),
    (IgnoresExpectations, "test_a_batch_is_made_only_if_it_finds_what_it_expects"),
    (ForgetsDeletes, "test_what_a_batch_put_is_there"),
    (Forgetful, "test_what_is_durable_is_there_when_it_is_opened_again"),
    (SaysNothingOfALostAnswer, "test_of_a_batch_whose_answer_is_lost_all_is_kept_or_nothing"),
]


@pytest.mark.parametrize(("broken", "test"), CAUGHT, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_driver_that_breaks_its_contract_is_found(broken, test, monkeypatch):
    """S1-6 S1-7 S1-8 Each by the test that is there for it; the driver that it was made from passes that test."""
    suite, opened = suite_for(broken())
    with pytest.raises((AssertionError, StoreError, pytest.fail.Exception)):
        await run(suite, test, opened, monkeypatch)
    if broken not in (KeyByKey, SaysNothingOfALostAnswer):
        suite, opened = suite_for(MemoryDriver())
        await run(suite, test, opened, monkeypatch)


def test_each_test_of_the_suite_is_shown_to_find_something():
    tests = {name for name in vars(DriverConformance) if name.startswith("test_")}
    assert tests - {test.partition("[")[0] for _, test in CAUGHT} == {
        "test_a_killed_process_leaves_whole_batches_and_all_that_it_was_told_of"
    }


LATER = {
    "batches": "def batch(self, puts, deletes=(), expect=None): ...",
    "halves of batches": """
    def batch(self, puts, deletes=(), expect=None):
        puts = dict(puts)
        super().batch({key: puts.pop(key) for key in sorted(puts)[:15]})
        if int(puts[b"k29"]) == 20:  # at which it is killed
            import time
            print(20, flush=True)
            time.sleep(600)
        super().batch(puts)
""",
    "alarms": "def set_alarm(self, at): ...",
}


@pytest.mark.parametrize("what", LATER)
async def test_a_driver_that_writes_later_than_it_says_is_found_by_a_kill(tmp_path, what):
    """S1-5 S1-7 What it acknowledged is still in the memory of the process that was killed."""

    class Suite(DriverConformance):
        def program(self):
            return f"""
from holdfast.kv import DirectoryDriver
class Later(DirectoryDriver):
    {LATER[what]}
driver = Later({str(tmp_path)!r})
DirectoryDriver.batch(driver, {{b"k%02d" % each: b"0" for each in range(30)}})
"""

    with pytest.raises(AssertionError):
        await Suite().test_a_killed_process_leaves_whole_batches_and_all_that_it_was_told_of(
            lambda: DirectoryDriver(tmp_path)
        )
