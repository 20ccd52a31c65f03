"""Key spaces of every format there ever was are read by this code, and their runs come to the same end."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.kv.golden import story_1
from tests.support.paths import ROOT

from holdfast.kv import DirectoryDriver, MemoryDriver, compact, drive, keys
from holdfast.kv.space import Space
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


def table(theirs):
    """Return the rows of the page's table that names the keys of others."""
    page = (ROOT / "docs" / "how-to" / "key-value.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", page[page.index("| theirs | ours |") :], re.MULTILINE)
    return {left: right for left, right in rows if theirs in left}


async def test_every_key_that_other_engines_name_has_its_place_in_ours(tmp_path):
    """S0-10 S0-40 S1-19 S1-20 S1-21 The page's table, each row of it held against a key space that is there."""
    driver = opened(tmp_path, "retrying")
    stored = dict(driver.list(b""))
    rows = await Space(driver).load()
    places = {row.location for row in rows}

    def family(prefix):
        return [key for key in stored if key.startswith(prefix)]

    names = family(keys.ENTRY + b"!a0")
    assert table("[1, i]")
    assert stored[names[0]].endswith(b'["charge"]]')
    loops = [place for place in places if "/~" in place]
    assert table("[2, ...location]")
    assert re.fullmatch(r"[a-z]\d+/~[a-z]\d+/[a-z]\d+", sorted(loops)[-1])
    assert table("[3, messageId]")
    unread = opened(tmp_path, "unread")
    assert len([key for key, _ in unread.list(keys.MESSAGE)]) == 2
    unread.close()
    ended = opened(tmp_path, "ended")
    about = msgspec.json.decode(ended.get(keys.ABOUT))
    assert table("[4, 1]")
    assert (about["id"], about["workflow"], about["version"]) == ("ended", "everything", "1")
    assert ended.get(keys.STATE) == b'{"state":"completed"}'
    assert ended.get(keys.OUTPUT).startswith(b'["charged ended"')
    assert ended.get(keys.INPUT) == b'{"order":"ended"}'
    ended.close()
    tries = [row for row in rows if row.kind in (4, 5)]
    assert table("[5, entryId]")
    assert {row.location for row in tries} <= places
    assert tries
    for theirs in ("executions:{runId}", "tasks:{taskId}", "unique:", "deadletter:{id}", "index:...", "[4, 4]`"):
        assert table(theirs), theirs
    assert table("executions:")["`executions:{runId}`"].startswith("`\\x01rabout`")
    driver.close()


async def test_a_failed_runs_error_and_letters_have_keys(tmp_path):
    """S0-10"""
    from holdfast import Context, Retry, activity, workflow

    async def broken() -> None:
        raise ValueError("in vain")

    @workflow
    async def failing(ctx: Context) -> None:
        ctx.background(activity(retry=Retry.never)(broken))
        await ctx.step(activity(retry=Retry.never)(broken))

    driver = MemoryDriver()
    assert (await drive(driver, failing)).state == "failed"
    assert b"in vain" in (driver.get(keys.ERROR) or b"")
    assert len(driver.list(keys.LETTER)) == 1
