"""The transaction pooler: nothing that belongs to a session lasts longer than a transaction."""

from __future__ import annotations

import itertools
import socket
import threading

import psycopg
import pytest
from tests.postgres.pooler import PgBouncer, Pooler
from tests.postgres.servers import own_server
from tests.postgres.wire import SYNC, Frame, Frames, message, startup

CLASSES = [
    Pooler,
    pytest.param(PgBouncer, marks=pytest.mark.skipif(not PgBouncer.is_installed(), reason="no pgbouncer here")),
]


@pytest.fixture
def pooler(database):
    with Pooler(database) as pooler:
        yield pooler


@pytest.fixture(params=CLASSES)
def any_pooler(request, database):
    with request.param(database) as pooler:
        yield pooler


def connect(url: str, prepare_threshold: int | None = None, **options):
    """Connect as one does behind a pooler: without prepared statements."""
    return psycopg.connect(url, prepare_threshold=prepare_threshold, connect_timeout=10, **options)


def backend(connection) -> int:
    return connection.execute("SELECT pg_backend_pid()").fetchone()[0]


def test_every_transaction_has_one_server_connection_and_the_next_has_another(any_pooler):
    with connect(any_pooler.url) as connection:
        seen = []
        for _ in range(6):
            first = backend(connection)
            assert backend(connection) == first
            connection.commit()
            seen.append(first)
    assert len(set(seen)) == 2
    assert all(a != b for a, b in itertools.pairwise(seen))


def test_switches_are_counted(pooler):
    with connect(pooler.url, autocommit=True) as connection:
        assert pooler.switches == 0
        seen = [backend(connection) for _ in range(5)]
    assert all(a != b for a, b in itertools.pairwise(seen))
    assert pooler.switches == 4


def test_settings_and_temporary_tables_do_not_last(pooler):
    with connect(pooler.url, autocommit=True) as connection:
        connection.execute("SET search_path = elsewhere")
        assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)
        assert connection.execute("SHOW search_path").fetchone() == ("elsewhere",)  # and come upon others
        connection.execute("CREATE TEMP TABLE mine (a int)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM mine")


def test_prepared_statements_do_not_exist_on_another_server_connection(any_pooler):
    error = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)
    with connect(any_pooler.url, 5, autocommit=True) as connection, pytest.raises(error):
        for number in range(10):
            connection.execute("SELECT %s::int", [number], prepare=True)
    with connect(any_pooler.url, autocommit=True) as connection:
        for number in range(10):
            assert connection.execute("SELECT %s::int", [number]).fetchone() == (number,)


def test_within_a_transaction_all_works_as_always(any_pooler):
    with connect(any_pooler.url) as connection:
        connection.execute("SET LOCAL search_path = public")
        with connection.cursor() as cursor, cursor.copy("COPY notes FROM STDIN") as copy:
            for number in range(1000):
                copy.write_row([str(number)])
        with connection.transaction():
            connection.execute("DELETE FROM notes WHERE text = %s", ["7"])
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (999,)
        big = "x" * 2_000_000
        assert connection.execute("SELECT %s", [big]).fetchone() == (big,)
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_pipelines_and_lone_copies_work(pooler):
    with connect(pooler.url, autocommit=True) as connection:
        for _ in range(3):
            with connection.pipeline() as pipeline:
                cursors = []
                for number in range(30):
                    cursors.append(connection.execute("SELECT %s::int", [number]))
                    if number % 10 == 5:
                        pipeline.sync()
                assert [cursor.fetchone()[0] for cursor in cursors] == list(range(30))
            with connection.cursor() as cursor, cursor.copy("COPY notes FROM STDIN") as copy:
                copy.write_row(["a"])
            with connection.cursor() as cursor, cursor.copy("COPY (SELECT %s) TO STDOUT", ["b"]) as copy:
                assert list(copy.rows()) == [("b",)]
            connection.execute("TRUNCATE notes")
    assert pooler.switches > 5


def test_requests_under_way_keep_their_server_connection(pooler):
    asks = message(b"P", b"\0SELECT pg_backend_pid()\0\0\0") + message(b"B", bytes(8)) + message(b"E", bytes(5))
    with socket.create_connection(("127.0.0.1", pooler.port), 10) as client:
        frames = Frames()

        def answers(count: int) -> list[Frame]:
            """Everything up to and with the ReadyForQuery of that number."""
            found: list[Frame] = []
            while [frame.type for frame in found].count(b"Z") < count:
                data = client.recv(1 << 16)
                assert data
                found += frames.feed(data)
            return found

        client.sendall(startup({"user": pooler.user, "database": pooler.database}))
        answers(1)
        client.sendall(asks + SYNC + asks + SYNC + asks)  # two that are complete, and one that is not
        first = answers(2)
        client.sendall(SYNC)
        pids = [frame.body for frame in first + answers(1) if frame.type == b"D"]
        assert len(pids) == 3
        assert len(set(pids)) == 1


def test_more_clients_than_server_connections_wait_for_their_turn(any_pooler, database):
    def work(name: int) -> None:
        with connect(any_pooler.url) as connection:
            for number in range(10):
                connection.execute("INSERT INTO notes VALUES (%s)", [f"{name}-{number}"])
                connection.execute("SELECT pg_sleep(0.001)")
                connection.commit()

    threads = [threading.Thread(target=work, args=[name]) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(database) as direct:
        assert direct.execute("SELECT count(*) FROM notes").fetchone() == (80,)
        assert direct.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone() == (2,)


def test_a_client_that_goes_away_within_a_transaction_is_rolled_back(any_pooler, database):
    gone = connect(any_pooler.url)
    gone.execute("INSERT INTO notes VALUES ('a')")
    gone.close()
    for _ in range(3):
        with connect(any_pooler.url) as connection:
            connection.execute("LOCK TABLE notes")
            assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_a_server_connection_that_dies_ends_its_client_and_is_replaced(any_pooler, database):
    with connect(any_pooler.url) as connection, psycopg.connect(database, autocommit=True) as direct:
        victim = backend(connection)
        direct.execute("SELECT pg_terminate_backend(%s, 5000)", [victim])
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        assert connection.closed
    for _ in range(4):
        with connect(any_pooler.url) as connection:
            assert backend(connection) != victim


def test_idle_server_connections_that_died_are_replaced(pooler, database):
    with connect(pooler.url, autocommit=True) as connection:
        victims = {backend(connection) for _ in range(4)}
        with psycopg.connect(database, autocommit=True) as direct:
            for victim in victims:
                direct.execute("SELECT pg_terminate_backend(%s, 5000)", [victim])
        assert not victims & {backend(connection) for _ in range(4)}


def test_a_server_that_restarts_is_found_again():
    with own_server("18") as server, Pooler(server.url()) as pooler:
        with connect(pooler.url, autocommit=True) as connection:
            before = {backend(connection) for _ in range(2)}
            server.stop()
            with pytest.raises(psycopg.OperationalError, match="cannot connect"):
                backend(connection)
            with pytest.raises(psycopg.OperationalError, match="cannot connect"):
                connect(pooler.url)
            server.start()
        with connect(pooler.url, autocommit=True) as connection:
            assert not before & {backend(connection) for _ in range(2)}


def test_options_at_connecting_are_refused(any_pooler):
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        connect(any_pooler.url, options="-c search_path=elsewhere")


def test_a_database_that_is_not_there_is_reported(pooler):
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(pooler.url + "_not")


def test_a_query_can_be_cancelled(any_pooler):
    with connect(any_pooler.url, autocommit=True) as connection:
        backend(connection)
        # Not `cancel`: it blocks with the interpreter's lock held, and the pooler runs in this process.
        timer = threading.Timer(0.2, connection.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(20)")
        timer.join()
        assert backend(connection)


def test_the_settings_of_the_real_server_are_told_at_connecting(any_pooler, database):
    with connect(any_pooler.url) as pooled, psycopg.connect(database) as direct:
        assert pooled.info.server_version == direct.info.server_version
        assert pooled.info.encoding == "utf-8"
        assert pooled.info.parameter_status("standard_conforming_strings") == "on"
        assert pooled.info.parameter_status("integer_datetimes") == "on"
