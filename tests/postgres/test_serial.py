"""Batches that commit at the same time give what they give one after another, in the order of their commits."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from itertools import count, permutations
from typing import Any, cast

import msgspec
import psycopg
import pytest
from tests.postgres.test_batches import Both
from tests.stores.test_batches import Dice

from holdfast.chains import broken_link
from holdfast.contract.operations import Operation, Outcome, Started
from holdfast.contract.turns import TurnEffects
from holdfast.errors import StoreError
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.rules import letters as batch_letters
from holdfast.stores.sql.tables import Row, Value
from holdfast.stores.sqlite.statements import PlainStatements

LETTER: ContextVar[list[Any]] = ContextVar("letter")
"""The name of the batch that is being applied, and how many letters it has written."""
SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "10")) // 10
STORES, ROUNDS, BLOCK = 3, 25, 1000


class Player(Dice):
    """Random operations on runs that are there, one player's times apart from another's."""

    def __init__(self, seed: int, known: list[int], together: bool) -> None:
        super().__init__(seed)
        self.known = known
        self._together = together
        """Whether only what can be done beside others is asked for."""

    def key(self) -> int:
        return self.random.choice(self.known[-14:]) if self.known else 1

    def operation(self) -> Operation:
        if not self._together:
            return super().operation()
        self.at += 1
        make = self.random.choice([self.start, self.send, self.turn, self.turn, self.turn, self.publish, self.keep])
        operation: Any = make()
        return cast(Operation, operation)

    def effects(self) -> TurnEffects:
        effects = super().effects()
        return msgspec.structs.replace(effects, returns=[]) if self._together else effects

    def batch(self, size: int) -> list[Operation]:
        return [self.send(), *(self.operation() for _ in range(size))]


class Serial(Both):
    """An SQLite store to which batches are applied again, with the keys and letters they had the first time."""

    base = 0

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(url, None, monkeypatch)
        read, serial, made = PlainStatements.read, self, batch_letters.LetterRules.__init__

        def begin(letters: batch_letters.LetterRules, batch: Any) -> None:
            made(letters, batch)
            if (letter := LETTER.get(None)) is not None:
                letter[1] = 0  # a batch that is made again makes the same letters

        def next_letter() -> str:
            letter = LETTER.get()
            letter[1] += 1
            return f"letter-{letter[0]}-{letter[1]}"

        async def read_keys(self: PlainStatements, name: str, rows: list[Row]) -> list[tuple[Value, ...]]:
            return [(serial.base,)] if name == "last_key" else await read(self, name, rows)

        monkeypatch.setattr(PlainStatements, "read", read_keys)
        monkeypatch.setattr(batch_letters, "new_id", next_letter)
        monkeypatch.setattr(batch_letters.LetterRules, "__init__", begin)

    def remember(self) -> None:
        """Keep what there is, to come back to it."""
        self._image = self.sqlite._connections.writer.serialize("main")

    async def explains(
        self, order: list[int], names: list[str], bases: list[int], batches: list[list[Operation]], found: list[Any]
    ) -> bool:
        """Tell whether batches one after another, in this order, give what was found, in every table, too."""
        self.sqlite._connections.writer.deserialize("main", self._image)
        for place in order:
            LETTER.set([names[place], 0])
            self.base = bases[place]
            try:
                if await self.sqlite.apply(batches[place]) != found[place]:
                    return False
            except StoreError:  # in this order it would insert what it did not, under keys that are taken
                return False
        return self.differences() == {}


class Numbered(PostgresStore):
    """A store that says which keys its last batch was given, and how many it made alone."""

    base = 0

    def number(self, counter: Any) -> None:
        def block() -> int:
            self.base = next(counter) * BLOCK
            return self.base + 1

        self._database.keys = block

    async def first(self, name: str, batch: list[Operation]) -> list[Outcome]:
        LETTER.set([name, 0])
        return await self.apply(batch)


async def play(seed: int, url: str, together: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    serial, counter, known = Serial(url, monkeypatch), count(1), [1]
    await serial.open()
    stores = [Numbered(url) for _ in range(STORES)]
    players = [Player(seed * 100 + number, known, together) for number in range(STORES)]
    for store, player in zip(stores, players, strict=True):
        await store.open()
        store.number(counter)
        player.at += players.index(player) * 10_000
    in_order = 0
    for number in range(ROUNDS):
        serial.remember()
        batches = [player.batch(player.random.choice([1, 3, 8])) for player in players]
        names = [f"{number}-{place}" for place in range(STORES)]
        found = await asyncio.gather(*(s.first(n, b) for s, n, b in zip(stores, names, batches, strict=True)))
        order = _committed(serial, [next(iter(store.commits.tokens)) for store in stores])
        bases = [store.base for store in stores]
        # A batch that looked for a run which another was just inserting comes before it, though it committed later.
        orders = [order, *(list(other) for other in permutations(order))]
        explained = [each for each in orders if await serial.explains(each, names, bases, batches, found)]
        assert explained, (seed, number, order, batches, found)
        await serial.explains(explained[0], names, bases, batches, found)
        in_order += explained[0] == order
        known += [outcome.key for outcomes in found for outcome in outcomes if isinstance(outcome, Started)]
        for key, id, epoch in serial._in_memory("SELECT key, id, epoch FROM runs"):
            for player in players:
                player.epochs[key] = player.epochs[id] = epoch
    assert in_order > ROUNDS // 2
    assert broken_link(await stores[0].audit()) is None
    for store in stores:
        await store.close()
    await serial.close()
    return STORES * ROUNDS - sum(store.commits.exclusive for store in stores)


def _committed(serial: Serial, tokens: list[str]) -> list[int]:
    """Return which of the stores committed first, second and last."""
    with psycopg.connect(serial.postgres._connections.conninfo) as connection:
        rows = connection.execute(
            f'SELECT token, pg_xact_commit_timestamp(xmin) FROM "{serial.postgres.schema}".commit_tokens', ()
        ).fetchall()
    when: dict[str, Any] = dict(rows)
    assert set(when) >= set(tokens)
    return sorted(range(len(tokens)), key=lambda place: when[tokens[place]])


@pytest.mark.parametrize("together", [True, False], ids=["beside", "alone"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_batches_at_the_same_time_are_as_good_as_one_after_another(
    seed: int, together: bool, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2, G5, G7, G8, S2-28, S2-30: outcomes and every table, whoever comes first."""
    beside = await play(seed, database, together, monkeypatch)
    assert beside > (ROUNDS if together else 0)
