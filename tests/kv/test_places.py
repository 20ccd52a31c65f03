"""Places where there is no SQL: a function that is woken, photos on a phone, a bot for each chat."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.redis_server import redis_server

from holdfast.clock import to_datetime
from holdfast.errors import StoreError
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

PHOTOS = ("beach.jpg", "dinner.jpg", "sunset.jpg")
BATCHES = 12  # that the three photos make together at the very least


def lives(*args):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(SCRIPTS / "kv_lives.py"), *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_photos_leave_a_phone_whose_app_is_killed_at_any_batch(tmp_path, step):
    """S1-7 S1-13 S1-14 G1 Before a batch, inside it and after it: no photo is lost, none is uploaded again."""
    reports = lives(tmp_path, "photos", 1, step)
    every = {(at, moment) for at in range(1, BATCHES + 1, step) for moment in ("before", "inside", "after")}
    assert every - {(report["kill_at"], report["moment"]) for report in reports} == set()
    assert [report for report in reports if report["again"]] == []
    for report in reports:
        assert report["lines"][-1] == "3 photos are safe, the last at https://photos.example/small-sunset.jpg"
        for photo in PHOTOS:
            wanted = {f"  shrinking {photo}", f"  uploading small-{photo}", f"  removing {photo} from the phone"}
            assert wanted <= set(report["lines"])


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 13))])
def test_a_function_that_is_killed_at_random_gets_to_its_end_life_by_life(tmp_path, seed):
    """S1-1 S1-5 S1-15 G1 After every kill there is an alarm; what was recorded is not done again."""
    (report,) = lives(tmp_path, "function", seed)
    assert report["kills"] >= 3
    assert (report["again"], report["output"]) == ([], 615)
    pages = [f"  reading page {number}" for number in range(6)]
    assert report["lines"] == [*pages, "  writing a summary of 615 words"]


@pytest.fixture
def example(monkeypatch):
    pytest.importorskip("redis", reason="the package redis is not installed")
    spec = importlib.util.spec_from_file_location("chat_bots_example", ROOT / "examples" / "chat_bots.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_the_example_of_bots_runs_and_runs_again(example, server, tmp_path):
    environment = {**os.environ, "REDIS_URL": f"unix://{server.socket}"}
    outputs = []
    for _ in range(2):
        command = [sys.executable, ROOT / "examples" / "chat_bots.py"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout.splitlines())
    assert "  ada: You said 'how are you?', which is number 2." in outputs[0]
    assert outputs[1] == outputs[0][-1:] == ["3 chats are over, ada said ['hello', 'how are you?']"]


@pytest.mark.parametrize("chats", [60, pytest.param(1000, marks=pytest.mark.slow)])
async def test_a_bot_for_each_chat_of_very_many_on_one_redis_server(example, server, monkeypatch, chats):
    """S1-2 S1-3 S1-5 S1-8 Each in a key space of its own; a driver dies in some, whose alarm is due then."""
    said, clock, client = [], JumpingClock(), server.client(max_connections=10)

    async def say(chat, text):
        said.append((chat, text))

    monkeypatch.setattr(example, "say", say)
    names = [f"chat {number}" for number in range(chats)]
    spaces = {name: example.RedisDriver(client, name) for name in names}
    for number, name in enumerate(names):
        await example.go_on(spaces[name], name, clock)
        await example.hear(spaces[name], name, f"one of {name}", clock)
        if number % 7 == 0:
            dying = FaultyDriver(spaces[name])
            dying.lose = {2 + number % 2}  # the message is the first batch
            with pytest.raises(StoreError):
                await example.hear(dying, name, f"two of {name}", clock)
        else:
            await example.hear(spaces[name], name, f"two of {name}", clock)
    assert set(await example.look_after(spaces, clock)) == set(names[::7])
    assert await example.look_after(spaces, clock) == {}
    assert {await spaces[name].get_alarm() for name in names} == {to_datetime(clock.now()) + example.SILENCE}
    clock.advance(example.SILENCE + timedelta(seconds=1))
    standings = await example.look_after(spaces, clock)
    assert {name: standing.output for name, standing in standings.items()} == {
        name: [f"one of {name}", f"two of {name}"] for name in names
    }
    heard = [[text for chat, text in said if chat == name] for name in (names[1], names[-2])]
    assert heard[0] == [text.replace(names[-2], names[1]) for text in heard[1]]
    assert len(said) <= chats * 4 + len(names[::7])
    await client.aclose()
