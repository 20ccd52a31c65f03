"""The misbehaving network: each fault really bites, and at the place it is meant to."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psycopg
import pytest
from psycopg import pq
from tests.postgres.proxy import Proxy
from tests.postgres.servers import own_server
from tests.postgres.wire import Frame, Frames, Session, message, statements


@pytest.fixture
def proxy(database):
    with Proxy(database) as proxy:
        yield proxy


def notes(database: str) -> list[str]:
    with psycopg.connect(database) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY text")]


def wait_for_notes(database: str, expected: list[str]) -> None:
    give_up = time.monotonic() + 10
    while notes(database) != expected:
        assert time.monotonic() < give_up
        time.sleep(0.02)


def connect(proxy: Proxy, **options):
    return psycopg.connect(proxy.url, connect_timeout=5, **options)


def simple(connection) -> None:
    """By the simple protocol: Query BEGIN, Query INSERT, Query COMMIT."""
    connection.execute("INSERT INTO notes VALUES ('a')")
    connection.commit()


def parameters(connection) -> None:
    """The INSERT by the extended protocol, the COMMIT by the simple one."""
    connection.execute("INSERT INTO notes VALUES (%s)", ["a"])
    connection.commit()


def pipeline(connection) -> None:
    """All in one flight of the extended protocol: BEGIN, INSERT, COMMIT, and a Sync at the end."""
    with connection.pipeline():
        connection.execute("INSERT INTO notes VALUES (%s)", ["a"])
        connection.commit()


def prepared(connection) -> None:
    """A COMMIT that was prepared long before under a name."""
    low = connection.pgconn
    assert low.prepare(b"finish", b"COMMIT").status == pq.ExecStatus.COMMAND_OK
    connection.execute("INSERT INTO notes VALUES ('a')")
    result = low.exec_prepared(b"finish", None)
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(low.error_message)


def copied_before(connection) -> None:
    """After a COPY by the extended protocol, one of whose two Syncs goes unanswered."""
    connection.execute("SELECT 1")
    copied_by_the_extended_protocol(connection)
    connection.commit()


def at_once(connection) -> None:
    """Three statements in one Query."""
    connection.autocommit = True
    connection.execute("BEGIN; INSERT INTO notes VALUES ('a'); COMMIT")


TRANSACTIONS = [simple, parameters, pipeline, prepared, copied_before, at_once]


def lone(connection) -> None:
    """One statement outside of any transaction, by the simple protocol."""
    connection.execute("INSERT INTO notes VALUES ('a')")


def lone_with_parameters(connection) -> None:
    connection.execute("WITH it AS (SELECT %s AS text FOR UPDATE) INSERT INTO notes SELECT text FROM it", ["a"])


def lone_in_pipeline(connection) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute("INSERT INTO notes VALUES (%s)", ["a"])
        connection.execute("SELECT 2")


def copied(connection) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY notes FROM STDIN") as copy:
        copy.write_row(["a"])


def copied_by_the_extended_protocol(connection) -> None:
    low = connection.pgconn
    assert low.exec_params(b"COPY notes FROM STDIN", None).status == pq.ExecStatus.COPY_IN
    low.put_copy_data(b"a\n")
    low.put_copy_end()
    low.flush()
    result = next_result(low)
    while next_result(low) is not None:
        pass
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(low.error_message)


def next_result(low):
    """Wait here: `get_result` would wait with the interpreter's lock held, and the proxy runs in this process."""
    while low.is_busy():
        time.sleep(0.001)
        low.consume_input()
    return low.get_result()


LONE_STATEMENTS = [lone, lone_with_parameters, lone_in_pipeline, copied, copied_by_the_extended_protocol]


def test_a_proxy_without_faults_only_passes_things_on(proxy, database):
    with connect(proxy) as connection:
        for work in TRANSACTIONS:
            work(connection)
            connection.autocommit = False
            connection.execute("TRUNCATE notes")
            connection.commit()
        big = "x" * 3_000_000
        assert connection.execute("SELECT %s", [big]).fetchone() == (big,)
    with connect(proxy, autocommit=True) as connection:
        for work in LONE_STATEMENTS:
            work(connection)
            connection.execute("TRUNCATE notes")
    assert (proxy.injected, proxy.connections) == (0, 2)


@pytest.mark.parametrize("work", TRANSACTIONS)
def test_a_cut_after_the_commit_was_sent_leaves_it_committed(proxy, database, work):
    connection = connect(proxy)
    proxy.cut_after_commit_sent()
    with pytest.raises(psycopg.OperationalError):
        work(connection)
    assert (proxy.injected, dict(proxy.bites)) == (1, {"cut_after_commit_sent": 1})
    assert connection.closed
    assert notes(database) == ["a"]


@pytest.mark.parametrize("work", TRANSACTIONS)
def test_a_cut_before_the_commit_leaves_nothing(proxy, database, work):
    connection = connect(proxy)
    proxy.cut_before_commit()
    with pytest.raises(psycopg.OperationalError):
        work(connection)
    assert dict(proxy.bites) == {"cut_before_commit": 1}
    assert connection.closed
    with psycopg.connect(database) as direct:
        direct.execute("LOCK TABLE notes")  # waits for the server to have noticed and rolled back
    assert notes(database) == []


@pytest.mark.parametrize("work", LONE_STATEMENTS)
@pytest.mark.parametrize("after", [True, False])
def test_a_statement_outside_of_transactions_is_a_commit_if_that_is_asked_for(proxy, database, work, after):
    connection = connect(proxy, autocommit=True)
    if after:
        proxy.cut_after_commit_sent(autocommit=True)
    else:
        proxy.cut_before_commit(autocommit=True)
    with pytest.raises(psycopg.OperationalError):
        work(connection)
    assert proxy.injected == 1
    with psycopg.connect(database) as direct:
        direct.execute("LOCK TABLE notes")
    assert notes(database) == (["a"] if after else [])


def test_a_statement_outside_of_transactions_is_let_through_otherwise(proxy, database):
    proxy.cut_before_commit()
    with connect(proxy, autocommit=True) as connection:
        lone(connection)
        connection.execute("COMMIT")  # of nothing: a warning is all it gives
    assert (proxy.injected, notes(database)) == (0, ["a"])


def test_commits_can_be_let_through_before_and_after_those_that_are_cut(proxy, database):
    proxy.cut_after_commit_sent(2, skip=1)
    outcomes = []
    for text in "abcd":
        connection = connect(proxy)
        connection.execute("INSERT INTO notes VALUES (%s)", [text])
        try:
            connection.commit()
            outcomes.append("known")
        except psycopg.OperationalError:
            outcomes.append("unknown")
        connection.close()
    assert outcomes == ["known", "unknown", "unknown", "known"]
    assert (proxy.injected, notes(database)) == (2, ["a", "b", "c", "d"])


def test_a_commit_that_fails_is_answered_and_the_next_one_is_cut(proxy, database):
    proxy.cut_after_commit_sent()
    connection = connect(proxy)
    connection.execute("INSERT INTO notes VALUES ('a'), ('a')")
    with pytest.raises(psycopg.errors.UniqueViolation):  # which is deferred to the commit
        connection.commit()
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    connection.execute("COMMIT")  # answered by ROLLBACK
    assert proxy.injected == 0
    with pytest.raises(psycopg.OperationalError):
        simple(connection)
    assert (proxy.injected, notes(database)) == (1, ["a"])


def test_a_late_commit_is_made_after_its_client_was_cut(proxy, database):
    for number, work in enumerate([simple, pipeline, prepared], 1):
        connection = connect(proxy)
        proxy.cut_after_commit_sent(late=0.3)
        with pytest.raises(psycopg.OperationalError):
            work(connection)
        assert proxy.injected == number
        assert notes(database) == []
        wait_for_notes(database, ["a"])
        with psycopg.connect(database) as direct:
            direct.execute("TRUNCATE notes")


def test_cutting_resets_every_open_connection(proxy):
    connections = [connect(proxy) for _ in range(3)]
    assert (proxy.open_connections, proxy.cut()) == (3, 3)
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert (proxy.injected, proxy.connections, proxy.open_connections) == (3, 3, 0)
    with connect(proxy) as connection:
        connection.execute("SELECT 1")


def test_refusing_refuses_new_connections_and_keeps_open_ones(proxy):
    with connect(proxy) as open_one:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="Connection refused"):
            connect(proxy)
        open_one.execute("SELECT 1")
        proxy.heal()
        with connect(proxy) as another:
            another.execute("SELECT 1")


def test_new_connections_can_be_reset_instead(proxy):
    proxy.reset_new()
    with pytest.raises(psycopg.OperationalError, match=r"reset|closed"):
        connect(proxy)
    assert proxy.bites["reset_new"] == proxy.connections > 0
    proxy.heal()
    connect(proxy).close()


def asking(url: str) -> subprocess.Popen[str]:
    """Another process that connects, says so, asks one thing for every line it is given, and prints the answers."""
    program = (
        "import sys, psycopg\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as connection:\n"
        "    print('connected', flush=True)\n"
        "    for line in sys.stdin:\n"
        "        print(connection.execute(line).fetchone()[0], flush=True)\n"
    )
    command = [sys.executable, "-c", program, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_black_hole_swallows_until_it_is_healed(proxy, database):
    process = asking(proxy.url)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    proxy.black_hole()
    process.stdin.write("INSERT INTO notes VALUES ('a') RETURNING text\n")
    process.stdin.flush()
    proxy.wait_injected()
    assert notes(database) == []
    started = time.monotonic()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(proxy.url, connect_timeout=2)
    assert time.monotonic() - started > 1.5
    assert proxy.bites["black_hole"] == 2
    proxy.heal()
    assert process.communicate(timeout=20)[0] == "a\n"
    assert notes(database) == ["a"]


@pytest.mark.parametrize(("direction", "arrives"), [("up", True), ("down", False)])
def test_one_way_lets_only_requests_or_only_answers_through(proxy, database, direction, arrives):
    process = asking(proxy.url)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    proxy.one_way(direction)
    process.stdin.write("INSERT INTO notes VALUES ('a') RETURNING text\n")
    process.stdin.flush()
    proxy.wait_injected()
    assert proxy.bites["one_way"] == 1
    assert notes(database) == (["a"] if arrives else [])
    proxy.heal()
    assert process.communicate(timeout=20)[0] == "a\n"
    assert notes(database) == ["a"]


def test_a_delay_makes_every_answer_late_but_does_not_add_up_in_a_pipeline(proxy):
    with connect(proxy, autocommit=True) as connection:
        proxy.delay(0.5)
        started = time.monotonic()
        with connection.pipeline():
            for _ in range(20):
                connection.execute("SELECT 1")
        assert 1.0 <= time.monotonic() - started < 10.0
        bites = proxy.bites["delay"]
        assert bites >= 2
        proxy.heal()
        connection.execute("SELECT 1")
        assert proxy.bites["delay"] == bites


def test_a_slow_network_takes_its_time(proxy):
    with connect(proxy, autocommit=True) as connection:
        proxy.slow(100_000)
        started = time.monotonic()
        assert connection.execute("SELECT repeat('x', 50000)").fetchone() == ("x" * 50000,)
        assert time.monotonic() - started > 0.4
        assert proxy.bites["slow"] >= 2
        proxy.heal()


def test_a_server_that_is_away_and_comes_back_is_passed_on(newest_server):
    with Proxy("postgresql://postgres@127.0.0.1:9/postgres") as nowhere, pytest.raises(psycopg.OperationalError):
        connect(nowhere)
    with own_server("18") as server, Proxy(server.url()) as proxy:
        open_one = connect(proxy)
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            open_one.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            connect(proxy)
        server.start()
        connect(proxy).close()
    with Proxy(newest_server.url(tcp=True)) as proxy, connect(proxy, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert connection.closed


def test_a_query_can_be_cancelled_through_the_proxy(proxy):
    with connect(proxy, autocommit=True) as connection:
        # Not `cancel`: it blocks with the interpreter's lock held, and the proxy runs in this process.
        timer = threading.Timer(0.2, connection.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(20)")
        timer.join()
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("COMMIT", ["commit"]),
        (" commit ; ", ["commit"]),
        ("/* ; */ begin -- COMMIT;\n; insert into t values ('; COMMIT');end", ["begin", "write", "commit"]),
        ("SELECT 'UPDATE', \"delete\", update_time FROM t FOR NO KEY UPDATE SKIP LOCKED", ["other"]),
        ("WITH due AS (SELECT key FROM runs FOR UPDATE) UPDATE runs SET owner = 1", ["write"]),
        ("ROLLBACK TO SAVEPOINT s; rollback", ["other", "rollback"]),
        ("DO $a$ BEGIN; COMMIT; END $a$", ["write"]),
        ("", []),
    ],
)
def test_statements_are_told_apart_by_what_they_mean_for_transactions(text, kinds):
    assert statements(text) == kinds


def test_frames_are_found_however_the_bytes_are_cut():
    stream = message(b"", b"\0\3\0\0user\0x\0\0") + message(b"Q", b"COMMIT\0") + message(b"S") + message(b"X")
    for size in (1, 2, 3, 7, len(stream)):
        frames = Frames(opening=True)
        found = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
        assert [frame.type for frame in found] == [b"", b"Q", b"S", b"X"]
        assert b"".join(frame.whole for frame in found) == stream


def test_a_pipeline_commits_only_what_was_begun_in_it():
    session = Session()

    def ask(kind: bytes, body: bytes = b"") -> object:
        whole = message(kind, body)
        return session.asked(Frame(kind, body, whole))

    def run(text: bytes) -> object:
        return (ask(b"P", b"\0" + text + b"\0\0\0"), ask(b"B", b"\0\0\0\0\0\0\0\0"), ask(b"E", b"\0\0\0\0\0"))[2]

    assert [run(b"BEGIN"), run(b"INSERT INTO t VALUES (1)"), run(b"COMMIT"), ask(b"S")] == [
        *(None, None, "transaction"),
        None,
    ]
    assert [run(b"COMMIT"), run(b"INSERT INTO t VALUES (1)"), ask(b"S")] == [None, None, "statement"]
    assert [run(b"SELECT 1"), ask(b"S")] == [None, None]
