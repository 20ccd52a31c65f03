-- What may be said of a run when it is started, and what operators do to it.
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN begins INTEGER;
ALTER TABLE runs ADD COLUMN timeout INTEGER;
ALTER TABLE runs ADD COLUMN deadline INTEGER;
ALTER TABLE runs ADD COLUMN unique_key TEXT;
ALTER TABLE runs ADD COLUMN actor TEXT;
ALTER TABLE runs ADD COLUMN tenant TEXT;
ALTER TABLE runs ADD COLUMN follows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN reopens INTEGER NOT NULL DEFAULT 0;
-- Whether the run may have rows in waiters, cursors, keys, key_waiters or heartbeats, so that most ends need not look.
ALTER TABLE runs ADD COLUMN traces INTEGER NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN compensation TEXT;

DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (owner, priority, due) WHERE ended IS NULL;
CREATE INDEX runs_status ON runs (status, key);
CREATE INDEX runs_workflow ON runs (workflow, key);
CREATE INDEX runs_ended ON runs (status, ended) WHERE ended IS NOT NULL;
CREATE UNIQUE INDEX runs_unique ON runs (workflow, unique_key) WHERE unique_key IS NOT NULL AND ended IS NULL;
CREATE INDEX runs_following ON runs (parent) WHERE follows = 1 AND ended IS NULL;
CREATE INDEX runs_actor ON runs (actor, key) WHERE actor IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, key) WHERE tenant IS NOT NULL;

CREATE TABLE attributes (
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    run   INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) WITHOUT ROWID;
CREATE INDEX attributes_run ON attributes (run);

-- Facts cut away when a run was reopened, by the number of times it had been before.
CREATE TABLE archive (
    run      INTEGER NOT NULL,
    reopens  INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    location TEXT NOT NULL,
    kind     INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    data     TEXT NOT NULL,
    PRIMARY KEY (run, reopens, seq, location)
) WITHOUT ROWID;

-- Ids of runs that were purged, so that they are not used for another by accident.
CREATE TABLE tombstones (
    id       TEXT PRIMARY KEY,
    workflow TEXT NOT NULL,
    digest   INTEGER NOT NULL,
    expires  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tombstones_expires ON tombstones (expires);

-- Ids of messages and events that must not be taken twice. run = 0: an event.
CREATE TABLE message_ids (
    run INTEGER NOT NULL,
    id  TEXT NOT NULL,
    at  INTEGER NOT NULL,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;
CREATE TABLE replies (message TEXT PRIMARY KEY, run INTEGER NOT NULL, payload TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX replies_run ON replies (run);

-- Events nobody has taken, or that stay for later waiters; how many there are of each name; who waits; who saw what.
CREATE TABLE events (
    n       INTEGER PRIMARY KEY AUTOINCREMENT,
    name    TEXT NOT NULL,
    id      TEXT NOT NULL,
    payload TEXT NOT NULL,
    at      INTEGER NOT NULL
);
CREATE INDEX events_name ON events (name, n);
CREATE INDEX events_age ON events (name, at);
CREATE INDEX events_at ON events (at);
CREATE TABLE event_queues (name TEXT PRIMARY KEY, pending INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE waiters (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    name     TEXT NOT NULL,
    since    INTEGER NOT NULL,
    PRIMARY KEY (run, location, name)
) WITHOUT ROWID;
CREATE INDEX waiters_name ON waiters (name, since, run);
CREATE TABLE cursors (run INTEGER NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;

-- Idempotency keys: held by a step (result is null) or with the result of one. waiting counts rows of key_waiters.
CREATE TABLE keys (
    activity TEXT NOT NULL,
    key      TEXT NOT NULL,
    digest   INTEGER NOT NULL,
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    result   TEXT,
    expires  INTEGER NOT NULL,
    waiting  INTEGER NOT NULL,
    PRIMARY KEY (activity, key)
) WITHOUT ROWID;
CREATE INDEX keys_run ON keys (run);
CREATE INDEX keys_expire ON keys (expires) WHERE result IS NOT NULL;
CREATE TABLE key_waiters (
    activity TEXT NOT NULL,
    key      TEXT NOT NULL,
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    PRIMARY KEY (activity, key, run, location)
) WITHOUT ROWID;
CREATE INDEX key_waiters_run ON key_waiters (run);

CREATE TABLE heartbeats (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    at       INTEGER NOT NULL,
    detail   TEXT NOT NULL,
    PRIMARY KEY (run, location)
) WITHOUT ROWID;

-- Work and events given up on. run is the public id: a letter outlives its run.
CREATE TABLE dead_letters (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    run           TEXT NOT NULL,
    workflow      TEXT NOT NULL,
    step          TEXT NOT NULL,
    name          TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    error         TEXT,
    payload       TEXT NOT NULL,
    target_status TEXT NOT NULL,
    sent          INTEGER,
    at            INTEGER NOT NULL,
    acknowledged  INTEGER,
    outcome       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX dead_letters_run ON dead_letters (run);
CREATE INDEX dead_letters_open ON dead_letters (kind, id) WHERE acknowledged IS NULL;

-- Append only. Each row carries the hash of the one before it: audit over the whole store, evidence per run.
CREATE TABLE audit (
    n        INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    action   TEXT NOT NULL,
    target   TEXT NOT NULL,
    detail   TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash     TEXT NOT NULL
);
CREATE INDEX audit_target ON audit (target, n);
CREATE TABLE evidence (
    run      TEXT NOT NULL,
    n        INTEGER NOT NULL,
    id       TEXT NOT NULL,
    kind     TEXT NOT NULL,
    data     TEXT NOT NULL,
    at       INTEGER NOT NULL,
    previous TEXT NOT NULL,
    hash     TEXT NOT NULL,
    PRIMARY KEY (run, n)
) WITHOUT ROWID;

CREATE TABLE schedules (
    id       TEXT PRIMARY KEY,
    workflow TEXT NOT NULL,
    spec     TEXT NOT NULL,
    input    TEXT NOT NULL,
    next     INTEGER,
    paused   INTEGER NOT NULL,
    last_run TEXT,
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX schedules_next ON schedules (next) WHERE next IS NOT NULL AND paused = 0;
