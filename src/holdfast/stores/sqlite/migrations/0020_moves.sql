-- Runs that go on elsewhere. A run is `moving` from the commit that takes it from its worker to the one that knows it
-- arrived; then it is `moved`, and its row stays as a tombstone.
--
-- token: names the move in both places. address: where to. inbox: the number of its last inbox row when it was marked;
-- what came later is forwarded. paused, until: whether it stays paused there, and for how long.
CREATE TABLE moves (
    run     INTEGER PRIMARY KEY,
    token   TEXT NOT NULL,
    address TEXT NOT NULL,
    inbox   INTEGER NOT NULL,
    paused  INTEGER NOT NULL,
    until   INTEGER,
    at      INTEGER NOT NULL
);
