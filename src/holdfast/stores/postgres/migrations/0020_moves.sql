-- Runs that go on elsewhere. A run is `moving` from the commit that takes it from its worker to the one that knows it
-- arrived; then it is `moved`, and its row stays as a tombstone.
--
-- token: names the move in both places. address: where to. inbox: the number of its last inbox row when it was marked;
-- what came later is forwarded. paused, until: whether it stays paused there, and for how long.
CREATE TABLE moves (
    run     BIGINT PRIMARY KEY,
    token   TEXT COLLATE "C" NOT NULL,
    address TEXT COLLATE "C" NOT NULL,
    inbox   BIGINT NOT NULL,
    paused  BIGINT NOT NULL,
    until   BIGINT,
    at      BIGINT NOT NULL
);
