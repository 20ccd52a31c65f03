-- Limits that all workers share; see stores/rules/limits.py.
--
-- limits         one row each: its numbers (spec), an operator's (override), and what is used of it. last: the number of
--                the last step that had to wait. stale: turns became free by a commit that did not know the time
-- limit_keys     a key of a limit while it is in use; a limit without keys has one, the empty text. ready, head_priority,
--                head: the first in line, if it may begin as far as its key is concerned
-- limit_counts   how many places a worker has
-- limit_waiters  steps that wait in line; granted: from when it may begin, place: whether one is reserved for it
-- Instants, but for limits.updated, are those of the lease's clock.

CREATE TABLE limits (
    name     TEXT PRIMARY KEY,
    spec     TEXT NOT NULL,
    override TEXT,
    paused   INTEGER NOT NULL,
    used     INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    waiting  INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    stale    INTEGER NOT NULL,
    updated  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE limit_keys (
    name          TEXT NOT NULL,
    key           TEXT NOT NULL,
    used          INTEGER NOT NULL,
    granted       INTEGER NOT NULL,
    waiting       INTEGER NOT NULL,
    ready         INTEGER NOT NULL,
    head_priority INTEGER,
    head          INTEGER,
    invited       INTEGER,
    begins        TEXT NOT NULL,
    held_until    INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    open_until    INTEGER,
    probe         TEXT NOT NULL,
    idle          INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX limit_keys_ready ON limit_keys (name, head_priority DESC, head) WHERE ready = 1;
CREATE INDEX limit_keys_idle ON limit_keys (idle) WHERE used = 0 AND granted = 0 AND waiting = 0;

CREATE TABLE limit_counts (
    name   TEXT NOT NULL,
    key    TEXT NOT NULL,
    worker TEXT NOT NULL,
    used   INTEGER NOT NULL,
    PRIMARY KEY (name, key, worker)
) WITHOUT ROWID;
CREATE INDEX limit_counts_worker ON limit_counts (worker);

CREATE TABLE limit_waiters (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    name     TEXT NOT NULL,
    key      TEXT NOT NULL,
    priority INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    granted  INTEGER,
    place    INTEGER NOT NULL,
    PRIMARY KEY (run, location)
) WITHOUT ROWID;
CREATE INDEX limit_waiters_line ON limit_waiters (name, key, priority DESC, n) WHERE granted IS NULL;
CREATE INDEX limit_waiters_granted ON limit_waiters (granted) WHERE granted IS NOT NULL;
