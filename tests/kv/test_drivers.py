"""The drivers that holdfast brings, against the contract."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc

import pytest

from holdfast.contract.turns import StartRun
from holdfast.errors import (
    CannotOpen,
    NotOurDatabase,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreReplaced,
)
from holdfast.kv import DirectoryDriver, MemoryDriver
from holdfast.kv.drivers import directory, segments
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.system import lock
from holdfast.testing.conformance import new_run
from holdfast.testing.drivers import DriverConformance


class TestMemoryDriver(DriverConformance):
    @pytest.fixture
    def open_driver(self):
        driver = MemoryDriver()
        return lambda: driver


def test_what_came_and_went_is_not_remembered_by_a_driver_that_lists_nothing():
    """An engine writes for weeks and lists its key space when it is opened."""
    driver = MemoryDriver()
    driver.batch({b"kept": b"1"})
    assert driver.list(b"") == [(b"kept", b"1")]
    tracemalloc.start()
    for number in range(5_000):
        driver.batch({b"k%07d" % number: b"v"})
        driver.batch({}, [b"k%07d" % number])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000
    assert driver.list(b"") == [(b"kept", b"1")]


class TestDirectoryDriver(DriverConformance):
    @pytest.fixture
    def open_driver(self, tmp_path):
        self.path = tmp_path / "space"
        return lambda: DirectoryDriver(self.path)

    def program(self):
        return f"from holdfast.kv import DirectoryDriver\ndriver = DirectoryDriver({str(self.path)!r})"

    def fail_next_batch(self, driver, monkeypatch):
        def full(file, data, at):
            os.pwrite(file, bytes(data)[:10], at)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(directory, "_write", full)

    def lose_next_answer(self, driver, monkeypatch):
        def failing(file):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(directory, "_sync", failing)


def written(path, count=5):
    driver = DirectoryDriver(path)
    for number in range(count):
        driver.batch({b"n": b"%d" % number, b"k%d" % number: b"v" * 40})
    driver.close()
    return segments.segment_path(path, 1)


def test_a_directory_is_open_once(tmp_path):
    """S1-3 One writer: the lock goes with the driver."""
    driver = DirectoryDriver(tmp_path)
    with pytest.raises(StoreBusy, match="another driver has it open"):
        DirectoryDriver(tmp_path)
    driver.close()
    with pytest.raises(StoreClosed):
        driver.batch({b"a": b"b"})
    DirectoryDriver(tmp_path).close()


FORKING = """
import os, sys
from holdfast.errors import StoreClosed
from holdfast.kv import DirectoryDriver
from holdfast.kv.drivers.lmdb import LMDBDriver
path, opened = sys.argv[1], globals()[sys.argv[2]]
driver = opened(path)
driver.batch({b"n": b"1"})
said, say = os.pipe()
waiting, wake = os.pipe()
child = os.fork()
if not child:
    os.close(wake)
    try:
        driver.batch({b"n": b"2"})
    except StoreClosed as error:
        os.write(say, str(error).encode())
    else:
        os.write(say, b"wrote")
    os.read(waiting, 1)  # until its parent ends
    os._exit(0)
print(os.read(said, 1000).decode())
driver.batch({b"n": b"3"})
driver.close()
driver = opened(path)  # though the child lives
print(driver.get(b"n").decode())
driver.close()
"""


@pytest.mark.parametrize("kind", ["DirectoryDriver", "LMDBDriver"])
def test_a_forked_child_has_no_part_in_the_key_space_of_its_parent(tmp_path, kind):
    """S1-3 G1 What two processes append to one file is lost; and a child that lives on keeps no lock."""
    pytest.importorskip("lmdb", reason="the package lmdb is not installed")
    command = [sys.executable, "-c", FORKING, tmp_path, kind]
    said, value = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "inherited through a fork" in said
    assert value == "3"


def test_a_lock_that_a_killed_process_leaves_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    """Between fork and exec its child has the lock, too."""
    monkeypatch.setattr(directory, "_LOCK_TRIES", 100_000)
    begun = DirectoryDriver(tmp_path)
    tried = []
    monkeypatch.setattr(directory, "lock", lambda file: tried.append(1) or (len(tried) > 5 and lock(file)))
    later = threading.Timer(0.1, begun.close)
    later.start()
    DirectoryDriver(tmp_path).close()
    later.join()
    assert len(tried) > 5


def test_a_segment_that_is_cut_at_any_byte_keeps_the_batches_before_it(tmp_path):
    """S1-7 The torn batch is dropped, and the next one takes its place; a base that is torn is refused by name."""
    ends = [len(written(tmp_path / str(count), count).read_bytes()) for count in range(6)]
    whole = segments.segment_path(tmp_path / "5", 1).read_bytes()
    path = written(tmp_path / "cut", 0)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut < ends[0]:
            with pytest.raises(StoreCorrupt, match=r"00000001\.log"):
                DirectoryDriver(tmp_path / "cut")
            assert path.read_bytes() == whole[:cut]
            continue
        kept = sum(cut >= end for end in ends) - 1
        driver = DirectoryDriver(tmp_path / "cut")
        assert driver._end == ends[kept]
        assert sorted(driver.list(b"k")) == [(b"k%d" % number, b"v" * 40) for number in range(kept)], cut
        driver.batch({b"n": b"again"})
        driver.close()
        driver = DirectoryDriver(tmp_path / "cut")
        assert (driver.get(b"n"), len(driver.list(b"k"))) == (b"again", kept)
        driver.close()


def test_a_bit_that_flips_anywhere_is_found(tmp_path):
    """S1-7 Refused by name, or, in the last batch, taken for one that was never acknowledged: never read wrong."""
    last = len(written(tmp_path / "shorter", 4).read_bytes())
    path = written(tmp_path / "space")
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        if place < last:
            with pytest.raises((StoreCorrupt, SchemaTooNew), match=r"00000001\.log"):
                DirectoryDriver(tmp_path / "space")
            assert path.read_bytes() == damaged
        else:
            driver = DirectoryDriver(tmp_path / "space")
            assert (driver.get(b"n"), driver.get(b"k4")) == (b"3", None), place
            driver.close()


def test_a_last_batch_that_was_only_written_in_part_is_dropped(tmp_path):
    """Blocks of a file reach the disk in any order: the length may be there before the bytes."""
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes(20))
    driver = DirectoryDriver(tmp_path)
    assert driver.get(b"n") == b"3"
    driver.close()


def test_the_room_that_a_killed_process_left_is_no_batch(tmp_path):
    """S1-7 Zeros at the end are kept for what comes; a torn batch in them is dropped, one after them is refused."""
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(3000))
    driver = DirectoryDriver(tmp_path)
    assert (driver.get(b"n"), path.stat().st_size) == (b"2", len(whole) + 3000)
    driver.batch({b"n": b"3", b"zeros": bytes(50)})
    driver.close()
    again = path.read_bytes()
    path.write_bytes(again[:-60] + bytes(3000))
    driver = DirectoryDriver(tmp_path)
    assert (driver.get(b"n"), path.stat().st_size) == (b"2", len(whole))
    driver.close()
    path.write_bytes(whole + bytes(3000) + segments.packed(6, {b"a": b"b"}, ()))
    with pytest.raises(StoreCorrupt, match=r"the batch after number \d+, at byte \d+, is damaged"):
        DirectoryDriver(tmp_path)


def test_a_batch_seldom_changes_how_long_its_file_is(tmp_path):
    """A sync of a file that is as long as before takes about half the time; what is closed is as long as it must be."""
    driver = DirectoryDriver(tmp_path)
    path, lengths = segments.segment_path(tmp_path, 1), set()
    for number in range(1000):
        driver.batch({b"n": b"%d" % number * 30})
        lengths.add(path.stat().st_size)
    assert len(lengths) <= 20
    assert max(lengths) < driver._end + 64 * 1024
    driver.close()
    assert path.stat().st_size == len(path.read_bytes().rstrip(b"\0"))
    small = DirectoryDriver(tmp_path / "small")
    small.batch({b"n": b"1"})
    assert segments.segment_path(tmp_path / "small", 1).stat().st_size == 4096
    small.close()


def test_a_damaged_batch_before_others_is_refused_by_name_and_untouched(tmp_path):
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"00000001\.log: the batch after number \d, at byte \d+, is damaged"):
        DirectoryDriver(tmp_path)
    assert path.read_bytes() == data


def test_a_hole_between_batches_is_refused_by_name(tmp_path):
    path = written(tmp_path, 2)
    head = path.read_bytes()
    after = segments.packed(4, {b"a": b"b"}, ())
    path.write_bytes(head + after)
    with pytest.raises(StoreCorrupt, match="batch 4 follows batch 2"):
        DirectoryDriver(tmp_path)


@pytest.mark.parametrize("gone", ["00000001.log", "00000002.log"])
def test_a_missing_segment_is_refused_by_name(tmp_path, gone):
    written(tmp_path, 2)
    for number in (2, 3):
        batch = segments.packed(number + 1, {b"a": b"b"}, ())
        segments.segment_path(tmp_path, number).write_bytes(segments.NEXT + batch)
    (tmp_path / gone).unlink()
    with pytest.raises(StoreCorrupt, match="the segment before it is lost"):
        DirectoryDriver(tmp_path)


@pytest.mark.parametrize("newer", ["the only segment", "the last segment"])
def test_a_directory_of_a_newer_version_is_refused_and_untouched(tmp_path, newer):
    path = written(tmp_path)
    data = path.read_bytes()
    if newer == "the last segment":
        path = segments.segment_path(tmp_path, 2)
    path.write_bytes(data.replace(b"key space 1 base", b"key space 2 base"))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(SchemaTooNew, match="format 2, which a newer holdfast wrote"):
        DirectoryDriver(tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_folders_that_are_made_survive_a_power_cut(tmp_path, monkeypatch):
    """S1-7 A batch is durable only if the names of all the folders above it are."""
    synced = []
    monkeypatch.setattr(directory, "_sync_folder", synced.append)
    DirectoryDriver(tmp_path / "a" / "b" / "c").close()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    synced.clear()
    DirectoryDriver(tmp_path / "a" / "b" / "c").close()
    assert synced == []


def test_what_a_killed_process_wrote_and_did_not_sync_is_synced_before_it_is_read(tmp_path, monkeypatch):
    """S1-7 What was read is acted on; a power cut later must not take it back."""
    path = written(tmp_path)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), fsync(file)))
    DirectoryDriver(tmp_path).close()
    assert synced == [path.stat().st_ino]


def test_a_path_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("no key space")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CannotOpen, match="file"):
            DirectoryDriver(path)


def test_a_folder_of_another_program_is_refused_by_name_and_untouched(tmp_path):
    """An LMDB environment for example, which would otherwise be an empty key space."""
    (tmp_path / "data.mdb").write_text("of another program")
    with pytest.raises(NotOurDatabase, match=r"data\.mdb"):
        DirectoryDriver(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]


def test_a_folder_is_empty_that_has_what_systems_put_there_and_a_beginning(tmp_path):
    (tmp_path / "lost+found").mkdir()
    for name in (".hidden", "lock", "00000001.new"):  # the process was killed before there was a key space
        (tmp_path / name).touch()
    driver = DirectoryDriver(tmp_path)
    assert driver.list(b"") == []
    driver.close()


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "restored"])
def test_nothing_is_acknowledged_that_is_in_a_file_that_is_gone(tmp_path, how):
    """G1: the file that is open is not what is read next."""
    path = tmp_path / "space"
    DirectoryDriver(path).close()
    shutil.copytree(path, tmp_path / "backup")
    driver = DirectoryDriver(path)
    driver.batch({b"a": b"1"})
    if how == "deleted":
        shutil.rmtree(path)
    elif how == "moved":
        path.rename(tmp_path / "elsewhere")
    elif how == "replaced":
        path.rename(tmp_path / "elsewhere")
        (tmp_path / "backup").rename(path)
    else:
        (tmp_path / "backup" / "00000001.log").rename(path / "00000001.log")
    for error in (StoreReplaced, StoreClosed):
        with pytest.raises(error):
            driver.batch({b"b": b"2"})
    driver.close()


async def test_an_engine_whose_directory_is_taken_away_says_so_and_acknowledges_nothing(tmp_path):
    """G1"""
    store = KeyValueStore(lambda: DirectoryDriver(tmp_path / "space"))
    await store.open()
    (tmp_path / "space").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(StoreReplaced, match="moved, deleted or replaced"):
            await store.apply([StartRun(run=new_run("a"))])
    await store.close()
    assert not (tmp_path / "space").exists()


def test_files_that_others_put_beside_a_key_space_stay(tmp_path):
    written(tmp_path)
    for name in ("settings.new", "00000002.txt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "00000002.new").write_text("a compaction that was killed")
    DirectoryDriver(tmp_path).close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"settings.new", "00000002.txt", "00000001.log", "lock"}


def test_a_compaction_gives_back_what_is_superseded_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_WASTE", 10_000)
    driver = DirectoryDriver(tmp_path)
    driver.batch({b"kept": b"1"})
    for number in range(100):
        driver.batch({b"large": b"%d" % number * 1000})
    assert sum(path.stat().st_size for _, path in segments.segments(tmp_path)) < 40_000
    driver.close()
    driver = DirectoryDriver(tmp_path)
    assert dict(driver.list(b"")) == {b"kept": b"1", b"large": b"99" * 1000}
    driver.close()


@pytest.mark.parametrize("moment", ["before the new segment is named", "before the old ones are removed"])
def test_a_crash_in_a_compaction_loses_nothing(tmp_path, moment):
    written(tmp_path)
    driver = DirectoryDriver(tmp_path)
    kept = dict(driver.list(b""))
    old = segments.segment_path(tmp_path, 1).read_bytes()
    driver.compact()
    driver.close()
    new = segments.segment_path(tmp_path, 2)
    segments.segment_path(tmp_path, 1).write_bytes(old)
    if moment.startswith("before the new"):
        new.rename(new.with_suffix(".new"))
    for _ in range(2):
        driver = DirectoryDriver(tmp_path)
        assert dict(driver.list(b"")) == kept
        driver.batch({b"more": b"1"})
        kept[b"more"] = b"1"
        driver.close()


KILLED_ANYWHERE = """
import os, pathlib, shutil, sys
from holdfast.kv import DirectoryDriver
from holdfast.kv.drivers import directory

directory._WASTE = 500

def write(folder, told):
    driver = DirectoryDriver(folder)
    start = int(driver.get(b"n") or b"0")
    for number in range(start + 1, start + 13):
        driver.batch({b"n": b"%d" % number, b"m": b"%d" % number * 100})
        told(number)
    driver.close()

def kill_at(wanted):
    left = wanted
    def counted(call):
        def counting(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            return call(*args, **kwargs)
        return counting
    for name in ("open", "pwrite", "fsync", "ftruncate", "close", "fstat"):
        setattr(os, name, counted(getattr(os, name)))
    directory._sync = counted(directory._sync)
    for name in ("rename", "unlink"):
        setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))

kills, segments = 0, set()
folder = pathlib.Path(sys.argv[1], "space")
for again in (False, True):
    for at in range(1000):
        shutil.rmtree(folder, ignore_errors=True)
        if again:
            write(folder, lambda number: None)
        pipe = os.pipe()
        child = os.fork()
        if not child:
            kill_at(at)
            write(folder, lambda number: os.write(pipe[1], bytes([number])))
            os._exit(0)
        os.close(pipe[1])
        killed = os.waitstatus_to_exitcode(os.wait()[1]) == 9
        told = max(os.read(pipe[0], 100), default=12 if again else 0)
        os.close(pipe[0])
        for _ in range(2):
            driver = DirectoryDriver(folder)
            found, other = int(driver.get(b"n") or b"0"), driver.get(b"m")
            driver.close()
            assert told <= found <= told + 1, (at, told, found)
            assert other == (b"%d" % found * 100 if found else None), (at, other)
        segments |= {path.name for path in folder.iterdir()}
        kills += killed
        if not killed:
            break
print(kills, len(segments))
"""


def test_a_process_that_is_killed_at_any_call_of_the_system_leaves_what_it_acknowledged(tmp_path):
    """S1-7 G1 While it makes a folder, writes, compacts several times, and closes; and when it is opened again."""
    done = subprocess.run([sys.executable, "-c", KILLED_ANYWHERE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, segments = map(int, done.stdout.split())
    assert kills > 100
    assert segments > 5, "there were compactions"


@pytest.mark.parametrize("call", ["rename", "close", "_sync_folder"])
def test_a_compaction_that_is_interrupted_loses_no_batch_that_comes_after_it(tmp_path, monkeypatch, call):
    """G1 An interrupt may come when the new segment has its name, and the driver still has the old one."""
    driver = DirectoryDriver(tmp_path)
    driver.batch({b"k": b"1"})
    where = {"rename": directory.Path, "close": os, "_sync_folder": directory}[call]
    made = getattr(where, call)

    def interrupted(*args):
        patch.undo()
        made(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, call, interrupted)
        driver.compact()
    acknowledged = b"1"
    with contextlib.suppress(StoreClosed):
        driver.batch({b"k": b"2"})
        acknowledged = b"2"
    driver.close()
    driver = DirectoryDriver(tmp_path)
    assert driver.get(b"k") == acknowledged
    driver.close()


def test_a_compaction_for_which_there_is_no_room_is_not_tried_at_every_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_WASTE", 10_000)
    tried, fsync = [], os.fsync

    def full(file):
        tried.append(file)
        raise OSError(errno.ENOSPC, "No space left on device")

    driver = DirectoryDriver(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    for number in range(100):
        driver.batch({b"large": b"%02d" % number * 500})
    assert 2 <= len(tried) <= 12
    assert not list(tmp_path.glob("*.new"))
    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(30):
        driver.batch({b"large": b"%02d" % number * 500})
    assert sum(path.stat().st_size for _, path in segments.segments(tmp_path)) < 90_000
    driver.close()
    driver = DirectoryDriver(tmp_path)
    assert driver.get(b"large") == b"29" * 500
    driver.close()
