"""The drivers over LMDB and Redis, against the contract, and the fifty-step order killed on them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from tests.kv.test_kills import BATCHES, WIDEST, run
from tests.support.redis_server import missing, redis_server
from tests.support.scripts import crash_everywhere
from tests.support.scripts.kv_everywhere import recorded

from holdfast.contract.operations import Started
from holdfast.contract.turns import StartRun
from holdfast.errors import (
    BadInput,
    CannotOpen,
    NotOurDatabase,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReplaced,
    StoreUnreachable,
)
from holdfast.kv import DirectoryDriver, MemoryDriver, deliver, drive
from holdfast.kv.drivers.lmdb import LMDBDriver
from holdfast.kv.drivers.redis import RedisDriver
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.testing.conformance import new_run, one
from holdfast.testing.drivers import DriverConformance, FaultyDriver

lmdb = pytest.importorskip("lmdb", reason="the package lmdb is not installed")
redis = pytest.importorskip("redis", reason="the package redis is not installed")
PATIENT = {"patience": timedelta(seconds=5)}


class FailingTransaction:
    """A transaction of LMDB that breaks at its second put, or loses the answer to its commit."""

    def __init__(self, transaction, way):
        self._transaction, self._way, self._puts = transaction, way, 0

    def __getattr__(self, name):
        return getattr(self._transaction, name)

    def put(self, key, value, db):
        self._puts += 1
        if self._way == "fail" and self._puts == 2:
            raise lmdb.PanicError("broken")
        return self._transaction.put(key, value, db=db)

    def commit(self):
        self._transaction.commit()
        if self._way == "lose":
            raise lmdb.DiskError("Input/output error")


class TestLMDBDriver(DriverConformance):
    @pytest.fixture
    def open_driver(self, tmp_path):
        self.path = str(tmp_path / "space")
        return lambda: LMDBDriver(self.path)

    def program(self):
        return f"from holdfast.kv.drivers.lmdb import LMDBDriver\ndriver = LMDBDriver({self.path!r})"

    def fail_next_batch(self, driver, monkeypatch):
        self._break(driver, monkeypatch, "fail")

    def lose_next_answer(self, driver, monkeypatch):
        self._break(driver, monkeypatch, "lose")

    def _break(self, driver, monkeypatch, way):
        begun = driver._begun

        def breaking(write):
            return FailingTransaction(begun(write), way) if write else begun(write)

        monkeypatch.setattr(driver, "_begun", breaking)


def test_an_lmdb_map_grows_until_it_may_grow_no_more(tmp_path):
    """The batch that does not fit is not made; what was there is kept, and smaller ones are taken."""
    driver = LMDBDriver(tmp_path, largest=32 * 1024 * 1024)
    for number in range(20):
        driver.batch({b"k%d" % number: b"v" * 1024 * 1024})
    with pytest.raises(StoreFull, match="`largest` allows no more"):
        for number in range(20, 40):
            driver.batch({b"k%d" % number: b"v" * 1024 * 1024})
    assert len(driver.list(b"k")) >= 20
    driver.batch({b"small": b"1"}, [b"k0"])
    driver.close()
    driver = LMDBDriver(tmp_path)
    assert driver.get(b"small") == b"1"
    driver.close()


def test_an_lmdb_path_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("no environment")
    with pytest.raises(CannotOpen, match="file"):
        LMDBDriver(tmp_path / "file")


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_nothing_is_acknowledged_that_is_in_an_lmdb_file_that_is_gone(tmp_path, how):
    """G1: also by a driver that shares an environment which was opened before."""
    path = tmp_path / "space"
    first = LMDBDriver(path, "first")
    first.batch({b"a": b"1"})
    if how == "deleted":
        (path / "data.mdb").unlink()
    else:
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        (path / "data.mdb").touch()
    second = LMDBDriver(path, "second")
    for driver in (first, second, first):
        with pytest.raises(StoreReplaced, match=r"data\.mdb: was moved, deleted or replaced"):
            driver.batch({b"b": b"2"})
    first.close()
    second.close()


def test_a_folder_of_another_program_is_not_taken_for_an_empty_lmdb_environment(tmp_path):
    """That of a directory driver for example."""
    DirectoryDriver(tmp_path).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(NotOurDatabase, match=r"00000001\.log"):
        LMDBDriver(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_many_key_spaces_share_one_lmdb_environment(tmp_path):
    """S1-2"""
    for name in ("ada", "bo"):
        driver = LMDBDriver(tmp_path, name)
        assert driver.list(b"") == []
        driver.batch({b"n": name.encode()})
        driver.close()
    spaces = {name: LMDBDriver(tmp_path, name) for name in ("ada", "bo", "", "kb", "alarm")}
    for number in range(30):  # until the map has grown, under all of them
        spaces["bo"].batch({b"large%d" % number: bytes(1024 * 1024)})
    assert spaces["ada"].list(b"") == [(b"n", b"ada")]
    assert (spaces[""].list(b""), spaces[""].get_alarm()) == ([], None)
    spaces.pop("bo").close()
    spaces["ada"].batch({b"n": b"2"})
    for driver in spaces.values():
        driver.close()
        driver.close()
    driver = LMDBDriver(tmp_path, "ada")
    assert driver.list(b"") == [(b"n", b"2")]
    driver.close()
    with pytest.raises(StoreClosed):
        driver.list(b"")


def test_an_lmdb_environment_that_another_process_has_grown_is_read_on(tmp_path):
    """S1-6 Whatever is asked of it first."""
    driver = LMDBDriver(tmp_path, "ours")
    driver.batch({b"n": b"1"})
    code = (
        "import sys\nfrom holdfast.kv.drivers.lmdb import LMDBDriver\ndriver = LMDBDriver(sys.argv[1], 'theirs')\n"
        "for n in range(int(sys.argv[2])): driver.batch({b'%d' % n: bytes(1024 * 1024)})\ndriver.close()"
    )
    for ask, grown in ((driver.get, 20), (driver.list, 40), (lambda _: driver.get_alarm(), 80)):
        subprocess.run([sys.executable, "-c", code, tmp_path, str(grown)], check=True)
        assert ask(b"n") in (b"1", [(b"n", b"1")], None)
    driver.close()


KILLED = """
import os, signal, sys
from holdfast.kv.drivers.lmdb import LMDBDriver
driver = LMDBDriver(sys.argv[1])
reading = [driver._environment.begin() for _ in range(126)]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_that_are_killed_while_they_read_an_lmdb_environment_leave_no_trace(tmp_path):
    """Also where another has it open all the time: LMDB has room for 126 readers, and keeps what they read."""
    driver = LMDBDriver(tmp_path, largest=16 * 1024 * 1024)
    driver.batch({b"n": b"1"})
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == -signal.SIGKILL
        assert driver.get(b"n") == b"1"
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == -signal.SIGKILL
    for _ in range(20):
        driver.batch({b"long": bytes(1024 * 1024)})
    reading = [driver._environment.begin() for _ in range(126)]
    with pytest.raises(StoreBusy, match="as many read it as LMDB lets at once"):
        driver.get(b"n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True, capture_output=True, text=True)
    assert "StoreBusy" in caught.value.stderr
    for transaction in reading:
        transaction.abort()
    driver.close()


READING = """
import os, sys
from holdfast.errors import StoreCorrupt
from holdfast.kv.drivers.lmdb import LMDBDriver
path = sys.argv[1] + "/data.mdb"
whole = open(path, "rb").read()
for page in range(2, len(whole) // 4096):
    if os.fork():
        os.wait()
        continue
    with open(path, "r+b") as file:
        file.write(whole)
        file.seek(page * 4096 + 10)
        file.write(b"\\1")  # a page of another kind
    driver = LMDBDriver(sys.argv[1])
    try:
        driver.list(b"")
    except StoreCorrupt as error:
        print("named" if "restore" in str(error) else error, flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)
"""


def test_an_lmdb_page_that_is_damaged_is_refused_by_name(tmp_path):
    """Where LMDB itself notices it; some damage ends the process."""
    driver = LMDBDriver(tmp_path)
    for number in range(300):
        driver.batch({b"k%03d" % number: b"v" * 200})
    driver.close()
    done = subprocess.run([sys.executable, "-c", READING, tmp_path], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"named"}


@pytest.fixture
def server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_without_a_redis_server_tests_are_skipped_with_a_reason_unless_it_is_required(tmp_path):
    nowhere = {"PATH": str(tmp_path)}
    assert "make redis" in missing(nowhere)
    assert missing({**nowhere, "HOLDFAST_REDIS": "required"}) == ""


async def test_a_batch_that_a_client_asks_for_again_is_made_once(server, tmp_path):
    """S1-7 S1-18 The answer is lost, the client asks again by itself; what came after the batch stays as it is."""
    lost = str(tmp_path / "lossy.sock")
    direct, client = server.client(), redis.asyncio.Redis(unix_socket_path=lost)
    consumer, producer = RedisDriver(direct, "space"), RedisDriver(client, "space")
    seen = []

    async def serve(reader, writer):
        inner, outer = await asyncio.open_unix_connection(server.socket)
        while data := await reader.read(65536):
            outer.write(data)
            answer = await inner.read(65536)
            if b"EVAL" in data:
                seen.append(data)
                if len(seen) == 1:
                    await consumer.batch({}, [b"message"])
                    break
            writer.write(answer)
        outer.close()
        writer.close()

    async with await asyncio.start_unix_server(serve, lost):
        await producer.batch({b"message": b"1"})
        assert len(seen) == 2, "the client has asked again"
        assert await consumer.list(b"") == []
        await producer.batch({b"message": b"2"})
        assert await consumer.list(b"") == [(b"message", b"2")]
        await client.aclose()
    await direct.aclose()


def take_the_place_of(server, kept):
    """Have another server in its place, to which the last batches had not come."""
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    shutil.copytree(kept, server.folder / "appendonlydir")
    server.start()


async def test_a_server_that_took_the_place_of_one_without_its_last_batches_is_found_out(server, tmp_path):
    """S1-7 Nothing is written upon what is not there; who is told of it goes on from what is."""
    client = server.client()
    driver = RedisDriver(client, "space")
    await driver.batch({b"a": b"1"})
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "kept")
    await driver.batch({b"b": b"1"})
    take_the_place_of(server, tmp_path / "kept")
    await client.connection_pool.disconnect()
    with pytest.raises(OutcomeUnknown, match="does not know the batches before this one"):
        await driver.batch({b"c": b"1"})
    assert await driver.list(b"") == [(b"a", b"1")]
    await driver.batch({b"d": b"1"})
    assert await driver.list(b"") == [(b"a", b"1"), (b"d", b"1")]
    await client.aclose()


async def test_an_engine_whose_server_lost_what_it_had_said_goes_on_from_what_is_left(server, tmp_path):
    """S0-40 What it holds in memory is read back before anything is written again."""
    store = KeyValueStore(lambda: RedisDriver.connect(f"unix://{server.socket}", "engine"))
    await store.open()
    await one(store, StartRun(run=new_run("a")), Started)
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "kept")
    await one(store, StartRun(run=new_run("b")), Started)
    take_the_place_of(server, tmp_path / "kept")
    with pytest.raises(StoreUnreachable):  # the connection broke while nothing was being written
        await store._connections.check_owner()
    with pytest.raises(OutcomeUnknown):
        await store.apply([StartRun(run=new_run("c"))])
    assert [await store.get(id) is not None for id in ("a", "b", "c")] == [True, False, False]
    await one(store, StartRun(run=new_run("c")), Started)
    await store.close()
    await store.open()
    assert [await store.get(id) is not None for id in ("a", "b", "c")] == [True, False, True]
    await store.close()


class OddClient:
    """A client whose next script meets a full server, or whose answer is lost."""

    def __init__(self, client, way):
        self._client, self._way = client, way

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def eval(self, *args):
        if self._way == "fail":
            await self._client.config_set("maxmemory", "1")
        try:
            found = await self._client.eval(*args)
        finally:
            await self._client.config_set("maxmemory", "0")
        if self._way == "lose":
            raise redis.exceptions.ConnectionError("Connection closed by server")
        return found


class TestRedisDriver(DriverConformance):
    @pytest.fixture
    def open_driver(self, server):
        self.server = server
        return lambda: RedisDriver.connect(f"unix://{server.socket}", "space")

    def program(self):
        return (
            "from holdfast.kv.drivers.redis import RedisDriver\n"
            f"driver = RedisDriver.connect('unix://{self.server.socket}', 'space')"
        )

    def fail_next_batch(self, driver, monkeypatch):
        monkeypatch.setattr(driver, "_client", OddClient(driver._client, "fail"))

    def lose_next_answer(self, driver, monkeypatch):
        monkeypatch.setattr(driver, "_client", OddClient(driver._client, "lose"))


async def test_a_redis_client_that_does_not_do_is_refused_by_name():
    """No server is asked. One that decodes would do until it has written what it cannot read."""
    with pytest.raises(BadInput, match=r"redis\.asyncio"):
        RedisDriver(redis.Redis(), "space")
    for client in (redis.asyncio.Redis(decode_responses=True), redis.asyncio.from_url("redis:///?decode_responses=1")):
        with pytest.raises(BadInput, match="decode_responses"):
            RedisDriver(client, "space")
    with pytest.raises(BadInput, match="decode_responses"):
        await RedisDriver.connect("redis://localhost/?decode_responses=true", "space")


async def test_what_a_redis_server_promises_is_asked_when_it_is_opened(server):
    client = server.client()
    assert (await RedisDriver.open(client, "space")).durability == "disk"
    for setting, value in (("appendfsync", "everysec"), ("appendonly", "no")):
        await client.config_set(setting, value)
        assert (await RedisDriver.open(client, "space")).durability == "process"
        await client.config_set("appendfsync", "always")
    await client.aclose()


async def test_key_spaces_of_one_redis_server_are_apart(server):
    """S1-2 S1-8"""
    client = server.client()
    spaces = [RedisDriver(client, name) for name in ("a", "a:b", "{a}")]
    for place, space in enumerate(spaces):
        await space.batch({b"n": b"%d" % place})
        await space.set_alarm(moment(place))
    for place, space in enumerate(spaces):
        assert await space.list(b"") == [(b"n", b"%d" % place)]
        assert await space.get_alarm() == moment(place)
    await client.aclose()


def moment(place):
    return datetime(2030, 1, 1 + place, tzinfo=UTC)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_a_run_killed_at_any_batch_continues_and_repeats_no_recorded_step(tmp_path, request, kind, step):
    """S1-7 S1-13 S1-14 Before a batch, in the middle of it, and after it but before its answer."""
    environment = {"REDIS_SOCKET": request.getfixturevalue("server").socket} if kind == "redis" else {}
    reports = run(tmp_path, kind, 1, step, **environment)
    every = {(batch, moment) for batch in range(1, BATCHES + 1, step) for moment in ("before", "inside", "after")}
    assert every - {(report["kill_at"], report["moment"]) for report in reports} == set()
    assert [report for report in reports if report["state"] != "completed" or report["left"]] == []
    assert [report for report in reports if report["again"]] == []
    assert len({json.dumps(report["output"]) for report in reports}) == 1


class KilledServer(FaultyDriver):
    """A driver whose server is killed before one of its batches, inside it, or before its answer."""

    def __init__(self, driver, server, at, moment):
        super().__init__(driver)
        self._server, self._at, self._moment = server, at, moment

    async def batch(self, puts, deletes=(), expect=None):
        here = self.batches + 1 == self._at
        if here and self._moment == "before":
            self._server.kill()
        asked = asyncio.ensure_future(super().batch(puts, deletes, expect))
        if here and self._moment == "inside":
            await asyncio.sleep(0)  # it is asked for
            self._server.kill()
        await asked
        if here and self._moment == "after":
            self._server.kill()
            raise OutcomeUnknown("the answer is lost by the test")


async def a_life(server, name, life, at=0, moment=""):
    """Return what was recorded before the fifty-step order was driven, and its end, None if its server was killed."""
    crash_everywhere.LIFE = life
    client = server.client()
    driver = RedisDriver(client, name)
    done, standing = await recorded(driver), None
    if life == "first":
        await deliver(driver, "first", "one")
        await deliver(driver, "second", "two")
    try:
        standing = await drive(KilledServer(driver, server, at, moment), crash_everywhere.fifty, **PATIENT)
    except StoreError:
        server.process.wait()
        server.start()
    with contextlib.suppress(redis.exceptions.RedisError):
        await client.aclose()
    return done, standing


@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_run_goes_on_after_its_redis_server_was_killed_at_any_batch(server, tmp_path, monkeypatch, step):
    """S1-7 S1-13 S1-14 G1 All that was acknowledged is there again; no recorded step runs once more."""
    monkeypatch.setattr(crash_everywhere, "LIFE", "")
    kills = 0
    for at in itertools.count(1, step):
        for moment in ("before", "inside", "after"):
            name = f"{at} {moment}"
            monkeypatch.setattr(crash_everywhere, "LOG", tmp_path / name)
            _, standing = await a_life(server, name, "first", at, moment)
            if standing is not None:
                assert (moment, at > BATCHES) == ("before", True), name
                assert kills >= 3 * (BATCHES // step)
                return
            kills += 1
            done, standing = await a_life(server, name, "second")
            assert (standing.state, standing.output) == ("completed", OUTPUT), name
            lines = [line.split() for line in (tmp_path / name).read_text().splitlines()]
            first, second = ({each for life, each in lines if life == which} for which in ("first", "second"))
            assert second & set(done) == set(), name
            assert len(first & second) <= WIDEST, name
            assert first | second == crash_everywhere.NAMES


OUTPUT = [*(f"plain{number}" for number in range(13)), "one", "left-end", "two", "quick", "last"]


async def test_a_run_gives_the_same_on_every_driver(tmp_path, server, monkeypatch):
    client = server.client()
    drivers = [MemoryDriver(), LMDBDriver(tmp_path / "lmdb"), RedisDriver(client, "same")]
    monkeypatch.setattr(crash_everywhere, "LOG", tmp_path / "log")
    outputs = []
    for driver in drivers:
        await deliver(driver, "first", "one")
        await deliver(driver, "second", "two")
        outputs.append((await drive(driver, crash_everywhere.fifty, **PATIENT)).output)
    assert outputs[0] is not None
    assert outputs == [outputs[0]] * 3
    drivers[1].close()
    await client.aclose()
