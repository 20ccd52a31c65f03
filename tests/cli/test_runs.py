"""Starting runs, asking them, and following them from the command line."""

from __future__ import annotations

import json

from tests.support.command_cases import working

DATABASE = "sqlite:///holdfast.db"
APP = "tests.support.command_cases:adder"


def test_a_run_is_started_by_name_and_its_result_waited_for(shop, run):
    started = run("start", "order", '{"name": "lamp"}', "--id", "order-1", "--attribute", "customer=c-1", "--key", "k")
    assert (started.code, started.out) == (0, "order-1\n")
    again = run("start", "order", "-i", "name=lamp", "--id", "order-1", "--json")
    assert json.loads(again.out)["run"] == "order-1"
    other = run("start", "order", "-i", "name=chair", "--id", "order-1")
    assert (other.code, "order-1" in other.err) == (2, True)
    waits = run("result", "order-1")
    assert (waits.code, waits.out) == (6, "")
    assert "worker" in waits.err
    with working(DATABASE):
        ended = run("result", "order-1", "--wait", "--timeout", "5min")
    assert (ended.code, ended.out) == (0, '"paid lamp"\n')
    assert run("list", "customer=c-1", "--count").out == "1\n"
    assert [line.split()[:2] for line in run("steps", "order-1").out.splitlines()[1:]] == [
        ["keep", "completed"], ["bank", "completed"],
    ]  # fmt: skip


def test_the_result_of_a_run_that_failed_or_goes_on_is_a_code(shop, run):
    failed = run("result", "failed")
    assert (failed.code, failed.out) == (1, "")
    assert "the bank is closed for chair" in failed.err
    document = json.loads(run("result", "failed", "--json").out)
    assert (document["status"], document["ended"], document["error"]["type"]) == ("failed", True, "ValueError")
    passed = run("result", "sleeps", "--timeout", "0s")
    assert (passed.code, "Sleeps until" in passed.err) == (124, True)
    assert run("result", "nobody").code == 3


def test_bad_input_of_a_start_is_refused_with_a_way_out(shop, run):
    for arguments, said in (
        (("start", "order", "[1]"), "an object of its arguments by name"),
        (("start", "order", "{"), "is no JSON: "),
        (("start", "order", "-i", "lamp"), "write name=value"),
        (("start", "order", "--delay", "soon"), "write a number and s, min, h or d"),
        (("start", "", "{}"), "workflow name"),
        (("start", "adder", '{"more": 1}', "--app", APP), "more"),
        (("query", "account", "total"), "say which code: --app module:name"),
        (("query", "account", "total", "--app", "tests.support.command_cases:ader"), "has no 'ader'"),
        (("query", "account", "total", "--app", "no.such:thing"), "cannot be imported"),
    ):
        refused = run(*arguments)
        assert (refused.code, said in refused.err) == (2, True), refused.err


def test_a_run_is_asked_for_a_reply_and_its_code_for_its_state(shop, run):
    assert run("start", "adder", "--id", "adder-1").code == 0
    with working(DATABASE):
        assert run("ask", "adder-1", "add", "4").out == "4\n"
        asked = json.loads(run("ask", "adder-1", "add", "3", "--json").out)
    assert asked == {"schema": "holdfast.answer/1", "run": "adder-1", "name": "add", "answer": 7}
    assert run("query", "adder-1", "total", "--app", APP).out == "7\n"
    unknown = run("query", "adder-1", "sum", "--app", APP)
    assert (unknown.code, "total" in unknown.err) == (2, True)
    late = run("ask", "adder-1", "add", "1", "--timeout", "0s")
    assert (late.code, "the request stays" in late.err) == (124, True)


def test_attributes_are_set_and_taken_away_on_record(shop, run):
    assert run("set", "sleeps", "customer=c-7", "size=3", "--reason", "INC-1").code == 0
    assert run("list", "customer=c-7", "size=3", "--count").out == "1\n"
    assert run("set", "sleeps", "customer=null").code == 0
    assert run("list", "customer=c-7", "--count").out == "0\n"
    assert run("set", "sleeps", "customer").code == 2
    assert run("set", "sleeps", "size=4", "--dry-run").out == "sleeps would have size=4\n"
    assert run("list", "size=4", "--count").out == "0\n"
    assert run("set", "nobody", "customer=c-7").code == 3
    [last, first] = json.loads(run("audit", "list", "--target", "sleeps", "--json").out)["items"]
    assert (first["actor"], first["detail"]["reason"], last["action"]) == ("kim", "INC-1", "set attributes")


def test_attributes_of_many_runs_are_set_as_a_dry_run_counted_them(shop, run):
    many = run("set", "--where", "is:open", "region=eu", "--dry-run").out
    number = many.split()[0]
    assert many.startswith(f"{number} runs match: {number} can be changed.\nThey are found by the attributes")
    done = run("set", "--where", "is:open", "region=eu", "--yes", "--expect", number)
    assert (done.code, done.out.endswith(f"changed {number}\n")) == (0, True)
    assert run("list", "region=eu", "--count").out == f"{number}\n"


def test_a_start_warns_where_workers_are_alive_and_none_knows_the_workflow(shop, run):
    assert run("start", "ordr", "-i", "name=lamp").err == "", "a worker that knows it may come"
    with working(DATABASE):
        warned = run("start", "ordr", "-i", "name=lamp", "--id", "order-9")
        assert run("start", "order", "-i", "name=lamp").err == ""
    assert (warned.code, warned.out) == (0, "order-9\n")
    assert warned.err == "no worker that is alive knows workflow 'ordr'; did you mean order?\n"


def test_a_run_is_watched_until_it_has_ended(shop, run):
    run("start", "order", "-i", "name=lamp", "--id", "order-1")
    with working(DATABASE):
        watched = run("watch", "order-1")
    assert watched.code == 0
    assert watched.out.splitlines()[-4].startswith("order-1  order v1  completed  2 of 2 steps")
    assert [line.split()[:2] for line in watched.out.splitlines()[-2:]] == [["✓", "keep"], ["✓", "bank"]]
    failed = run("watch", "failed", "--json")
    assert (failed.code, json.loads(failed.out)["head"]["status"]) == (1, "failed")


def test_what_waits_to_be_tried_again_is_nudged(shop, run):
    nothing = run("nudge", "done")
    assert (nothing.code, "nothing changed" in nothing.err) == (6, True)
    assert run("nudge", "nobody").code == 3


def test_no_output_lets_a_run_steer_the_terminal(shop, run):
    """FACES 10, line 14: what runs, people and errors say comes out as text, JSON included."""
    evil = "\x1b[31m\u202egpj.exe\u200b\x9b2J\x07"
    run("start", "approval", "-i", "count=1", "--id", "evil", "--attribute", f"customer={evil}")
    run("send", "evil", "note", json.dumps(evil))
    run("publish", "parcel", json.dumps(evil))
    run("pause", "evil", "--reason", evil)
    for command in (
        ("list",), ("show", "evil"), ("why", "evil"), ("events", "parcel"), ("audit", "list"), ("history", "evil"),
    ):  # fmt: skip
        for form in ((), ("--json",)):
            shown = run(*command, *form)
            assert shown.code == 0
            assert not [letter for letter in shown.out + shown.err if not letter.isprintable() and letter != "\n"]
    assert json.loads(run("show", "evil", "--json").out)["head"]["attributes"]["customer"] == evil


def test_why_names_the_line_where_the_code_is_named(shop, run):
    why = run("why", "waits", "--app", "tests.support.transfer_cases:approval")
    assert why.code == 0
    assert "transfer_cases.py:" in why.out
    assert 'ctx.receive("approval")' in why.out
    assert "transfer_cases.py" not in run("why", "waits").out, "no code is loaded unasked"
