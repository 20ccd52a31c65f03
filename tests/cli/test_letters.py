"""Dead letters from the command line: by their cause, one by one, seen and replayed."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import msgspec
import pytest
from tests.support.transfer_cases import House, order

from holdfast.cli.main import main
from holdfast.looking.views import Acted, LetterGroup, LetterView
from holdfast.testing import JumpingClock


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Two runs failed, since the bank was closed; the fixture runs a command and returns its code and what it said."""
    monkeypatch.chdir(tmp_path)
    house = House("sqlite:///holdfast.db", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            for name in ("lamp", "chair"):
                await engine.start(order, name, id=name)
            await engine.settle()

    asyncio.run(fill())
    capsys.readouterr()

    def answer(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return answer


def letters(ask, *options: str) -> list[LetterView]:
    document = json.loads(ask("letters", "list", "--json", *options)[1])
    assert document["schema"] == "holdfast.letters/1"
    return msgspec.convert(document["items"], list[LetterView])


def test_letters_are_grouped_by_their_cause(ask):
    document = json.loads(ask("letters", "groups", "--json")[1])
    [group] = msgspec.convert(document["items"], list[LetterGroup])
    assert (group.workflow, group.step, group.error, group.count) == ("order", "bank", "ValueError", 2)
    code, out, _ = ask("letters", "groups")
    assert (code, out.splitlines()[1].split()[:4]) == (0, ["2", "order", "bank", "ValueError"])


def test_a_letter_is_seen_once_and_one_is_replayed(ask):
    first, second = letters(ask)
    assert {first.run, second.run} == {"lamp", "chair"}
    assert ask("letters", "ack", first.id, "--by", "kim", "--reason", "paid by hand")[0] == 0
    code, out, err = ask("letters", "ack", first.id)
    assert (code, out, "dealt with before" in err) == (6, "", True)
    assert [each.id for each in letters(ask)] == [second.id]
    assert ask("letters", "replay", second.id, "--by", "kim")[0] == 0
    assert "pending" in ask("list", second.run)[1]
    assert {each.id for each in letters(ask, "--all")} == {first.id, second.id}
    assert "no run waits" not in ask("letters", "list")[2]


def test_letters_are_named_on_stdin(ask, monkeypatch):
    ids = [each.id for each in letters(ask)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*ids, ""])))
    code, out, _ = ask("letters", "ack", "-", "--reason", "paid by hand")
    assert (code, out.splitlines()) == (0, [f"{each}: seen" for each in ids])
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert ask("letters", "ack", "-")[0] == 2


def test_what_cannot_be_done_is_said_with_its_code(ask):
    [first, _] = letters(ask)
    code, _, err = ask("letters", "ack", "nobody")
    assert (code, "there is no dead letter 'nobody'" in err) == (3, True)
    code, out, _ = ask("letters", "ack", first.id, "nobody", "--json")
    assert code == 7
    done = msgspec.convert(json.loads(out)["items"], list[Acted])
    assert [each.changed for each in done] == [True, False]


CAUSE = ("--workflow", "order", "--step", "bank", "--error", "ValueError")


def test_all_letters_of_a_cause_are_counted_and_replayed(ask):
    code, out, _ = ask("letters", "replay", *CAUSE, "--dry-run")
    assert (code, "2 dead letters match: 2 can be replayed." in out) == (0, True)
    plan = json.loads(ask("letters", "replay", *CAUSE, "--dry-run", "--json")[1])
    assert (plan["schema"], plan["can"]) == ("holdfast.letter-plan/1", 2)
    code, _, err = ask("letters", "replay", *CAUSE)
    assert (code, "--yes --expect 2" in err) == (2, True)
    code, _, err = ask("letters", "replay", *CAUSE, "--yes", "--expect", "3")
    assert (code, "this acts on 2 dead letters" in err) == (2, True)
    code, out, _ = ask("letters", "replay", *CAUSE, "--yes", "--expect", "2", "--by", "kim")
    assert (code, "replayed 2" in out) == (0, True)
    assert ask("letters", "ack", *CAUSE, "--yes")[0] == 6


@pytest.mark.parametrize(
    "given", [(), ("one", *CAUSE), CAUSE[:4], ("one", "--dry-run"), ("one", "--expect", "1")], ids=str
)
def test_letters_are_named_one_by_one_or_by_their_cause(ask, given):
    assert ask("letters", "remove", *given)[0] == 2
