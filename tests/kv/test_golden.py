"""Key spaces of every format there ever was are read by this code, and their runs come to the same end."""

from __future__ import annotations

import json
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from tests.kv.golden import story_1
from tests.support.paths import ROOT

from holdfast import Context, Retry, activity, workflow
from holdfast.kv import DirectoryDriver, MemoryDriver, compact, drive, keys
from holdfast.kv.drivers import segments
from holdfast.replay import entry as entries
from holdfast.testing import JumpingClock

GOLDEN = Path(__file__).parent / "golden" / "format_1"
LAST = "00000000-0000-0000-0000-000000000000"


def opened(tmp_path, name):
    shutil.copytree(GOLDEN / name, tmp_path / name)
    return DirectoryDriver(tmp_path / name)


async def finished(driver, name):
    clock = JumpingClock(story_1.BEGAN + timedelta(hours=1))
    for _ in range(9):
        standing = await drive(driver, story_1.STORIES[name], clock=clock)
        if standing.state != "sleeping":
            return standing
        clock.advance(timedelta(days=1))
    raise AssertionError(standing)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("name", list(story_1.STORIES))
async def test_a_key_space_of_format_1_comes_to_its_end(tmp_path, name, compacted):
    """S1-2 S1-11 S1-38 Also after all was removed that no replay reads."""
    driver = opened(tmp_path, name)
    if compacted:
        await compact(driver)
    standing = await finished(driver, name)
    assert (standing.id, standing.state) == (name, "completed")
    if name == "renewed":
        assert standing.output == 3
    else:
        *seen, last = standing.output
        assert seen == [f"charged {name}", {"x": "x", "y": "y"}, "step", 9, name, 3]
        assert len(last) == len(LAST)
    driver.close()


def test_there_are_key_spaces_of_every_format_that_there_ever_was():
    """A new format comes with some of its own; those of the earlier ones stay."""
    every = {f"format_{number}" for number in range(1, keys.FORMAT[0] + 1)}
    assert {path.name for path in GOLDEN.parent.glob("format_*")} == every
    assert segments.BASE == b"holdfast key space 1 base\n"  # in which they are kept


def table():
    """Return the rows of the page's table that names the keys of others: the names, and ours."""
    page = (ROOT / "docs" / "how-to" / "key-value.md").read_text()
    page = page[page.index("| theirs | ours |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", page, re.MULTILINE)
    return {name: ours for theirs, ours in rows for name in re.findall(r"`(.*?)`", theirs)}


def ours(row):
    """Return the keys that a row of the table names, as bytes."""
    return [key.encode().decode("unicode_escape").encode() for key in re.findall(r"`(\\x01.*?)`", row)]


NAMED = {  # by those who describe such engines, and where it is looked for
    "[1, i]": ("retrying", lambda key, value: key.startswith(b"\x01e!a0\0") and value.endswith(b'["charge"]]')),
    "[2, ...location]": ("retrying", lambda key, value: b"/~" in key and entry_kind(value) == entries.StepCompleted),
    "[3, messageId]": ("unread", lambda key, value: json.loads(value)["name"] in ("word", "other")),
    "[4, 1]": ("ended", lambda key, value: value == b'{"state":"completed"}'),
    "[4, 2]": ("ended", lambda key, value: value.startswith(b'["charged ended"')),
    "[4, 3]": ("failed", lambda key, value: b"in vain" in value),
    "[4, 4]": ("ended", lambda key, value: json.loads(value)["version"] == "1"),
    "[4, 5]": ("ended", lambda key, value: value == b'{"order":"ended"}'),
    "[5, entryId]": ("retrying", lambda key, value: entry_kind(value) == entries.AttemptFailed),
    "executions:{runId}": ("ended", lambda key, value: json.loads(value).keys() & {"workflow", "state"}),
    "unique:{workflowName}:{uniqueKey}": None,
    "tasks:{taskId}": ("retrying", lambda key, value: entry_kind(value) == entries.StepCompleted),
    "index:executions:status:{s}": ("unread", lambda key, value: json.loads(value)["state"] == "waiting"),
    "index:tasks:status:pending": ("retrying", lambda key, value: entry_kind(value) == entries.AttemptFailed),
    "index:tasks:status:active": ("retrying", lambda key, value: entry_kind(value) == entries.StepBegun),
    "index:tasks:execution:{runId}": ("retrying", lambda key, value: entry_kind(value) is not None),
    "deadletter:{id}": ("failed", lambda key, value: json.loads(value)["step"] == "broken"),
    "index:deadletter:unacked": ("failed", lambda key, value: json.loads(value)["attempts"] == 1),
    "meta:stats": None,
}


FAMILIES = (keys.ENTRY, keys.MESSAGE, keys.LETTER)


def entry_kind(value):
    kind = json.loads(value)[0]
    return next((each for each in vars(entries).values() if getattr(each, "kind", None) == kind), None)


async def failed():
    """Return the key space of a run that has failed."""

    async def broken() -> None:
        raise ValueError("in vain")

    @workflow
    async def failing(ctx: Context) -> None:
        ctx.background("broken", activity(retry=Retry.never)(broken))
        await ctx.step("last", activity(retry=Retry.never)(broken))

    driver = MemoryDriver()
    assert (await drive(driver, failing)).state == "failed"
    return dict(driver.list(b""))


@pytest.mark.parametrize("name", NAMED)
async def test_every_key_that_other_engines_name_has_its_place_in_ours(tmp_path, name):
    """S0-10 S0-40 S1-19 S1-20 S1-21 Each row of the page's table is held against a key space that is there."""
    row = table()[name]
    if NAMED[name] is None:
        assert row.startswith(("the key space itself", "none"))
        return
    space, fits = NAMED[name]
    if space == "failed":
        stored = await failed()
    else:
        driver = opened(tmp_path, space)
        stored = dict(driver.list(b""))
        driver.close()
    (place,) = re.findall(r"\[4, (\d)\]", name) or [None]
    wanted = ours(row)
    if place in ("1", "2", "3", "5"):  # one row has all four
        wanted = [wanted["1235".index(place)]]
    assert wanted
    # What a row says of the locations of steps, loops and names holds for others of them, too.
    families = [key if key[:2] == b"\x01r" else key[:2] for key in wanted]
    assert {*families} <= {keys.ABOUT, keys.INPUT, keys.STATE, keys.OUTPUT, keys.ERROR, *FAMILIES}
    found = [(key, value) for key, value in stored.items() if key.startswith(tuple(families))]
    assert any(fits(key, value) for key, value in found), (name, row)


def test_the_table_names_every_key_that_other_engines_do():
    """S0-10 S0-40 S1-19"""
    assert set(table()) == set(NAMED)
