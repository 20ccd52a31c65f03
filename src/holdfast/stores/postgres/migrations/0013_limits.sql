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
    name     TEXT COLLATE "C" PRIMARY KEY,
    spec     TEXT COLLATE "C" NOT NULL,
    override TEXT COLLATE "C",
    paused   BIGINT NOT NULL,
    used     BIGINT NOT NULL,
    granted  BIGINT NOT NULL,
    waiting  BIGINT NOT NULL,
    last     BIGINT NOT NULL,
    stale    BIGINT NOT NULL,
    updated  BIGINT NOT NULL
);

CREATE TABLE limit_keys (
    name          TEXT COLLATE "C" NOT NULL,
    key           TEXT COLLATE "C" NOT NULL,
    used          BIGINT NOT NULL,
    granted       BIGINT NOT NULL,
    waiting       BIGINT NOT NULL,
    ready         BIGINT NOT NULL,
    head_priority BIGINT,
    head          BIGINT,
    invited       BIGINT,
    begins        TEXT COLLATE "C" NOT NULL,
    held_until    BIGINT NOT NULL,
    failures      BIGINT NOT NULL,
    open_until    BIGINT,
    probe         TEXT COLLATE "C" NOT NULL,
    idle          BIGINT NOT NULL,
    at            BIGINT NOT NULL,
    PRIMARY KEY (name, key)
);
CREATE INDEX limit_keys_ready ON limit_keys (name, head_priority DESC, head) WHERE ready = 1;
CREATE INDEX limit_keys_idle ON limit_keys (idle) WHERE used = 0 AND granted = 0 AND waiting = 0;

CREATE TABLE limit_counts (
    name   TEXT COLLATE "C" NOT NULL,
    key    TEXT COLLATE "C" NOT NULL,
    worker TEXT COLLATE "C" NOT NULL,
    used   BIGINT NOT NULL,
    PRIMARY KEY (name, key, worker)
);
CREATE INDEX limit_counts_worker ON limit_counts (worker);

CREATE TABLE limit_waiters (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    key      TEXT COLLATE "C" NOT NULL,
    priority BIGINT NOT NULL,
    n        BIGINT NOT NULL,
    since    BIGINT NOT NULL,
    granted  BIGINT,
    place    BIGINT NOT NULL,
    PRIMARY KEY (run, location)
);
CREATE INDEX limit_waiters_line ON limit_waiters (name, key, priority DESC, n) WHERE granted IS NULL;
CREATE INDEX limit_waiters_granted ON limit_waiters (granted) WHERE granted IS NOT NULL;
