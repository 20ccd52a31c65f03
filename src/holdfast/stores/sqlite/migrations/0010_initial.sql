-- The tables of holdfast, and how data flows through them.
--
-- A run is one row of `runs`, small and often changed; what is large and written once, its input and its result, is in
-- `inputs` and `results`. Its history is `entries`: calls, facts and marks, appended by the worker that owns it and read
-- when it is replayed. Whatever others want of a run is a row of its `inbox`; its owner turns such a row into a fact, and
-- the commit that appends the fact deletes the row. `workers` says which processes are there and until when.
--
-- start     a caller inserts into runs and inputs, with no owner and a due time
-- claim     a worker makes due runs its own: owner, the next epoch, one more claim counted
-- turn      it appends to entries, if its epoch is still the run's, and deletes from inbox what it has taken in;
--           what the run waits for, and until when, is written to runs when it parks
-- wake      a row in the inbox raises runs.inbox and makes the run due
-- end       ended is set, results written, the inbox emptied, and a row put into the inbox of the parent
-- reopen    the facts after a cut move to `archive`, and the run is due again
-- purge     old runs go from every table; a row of `tombstones` keeps the id from being used for another by accident
--
-- What concerns more than one run:
--   attributes            searchable values of runs
--   message_ids           ids of messages and events that must not be taken twice
--   replies               answers to requests, by the id of the message that asked
--   events, event_queues  events that wait, or stay for later runs, and how many there are of each name
--   event_waiters         receives that wait: publishing puts the event into the inboxes of their runs
--   event_cursors         up to which event a run was given copies of those that stay
--   idempotency_keys      held by a step, or with the result of one; idempotency_waiters: steps that wait for a key
--   tasks                 attempts that any worker serving their queue may run, and which worker has taken them
--   heartbeats            when steps last reported progress
--   schedules             which workflow to start when; each tick starts its runs once
-- What is kept for people: dead_letters (work and events given up on), audit (what was done to runs and the store) and
-- evidence (what runs put on record), the last two append only, each row with the hash of the one before it.
--
-- Instants are microseconds since 1970. Payloads are JSON text. `run` is the key of a run, unless it is said to be an id.

CREATE TABLE runs (
    key                INTEGER PRIMARY KEY AUTOINCREMENT,
    id                 TEXT NOT NULL UNIQUE,
    workflow           TEXT NOT NULL,
    status             TEXT NOT NULL,
    epoch              INTEGER NOT NULL,           -- the number of its claim: every write of its owner carries it
    owner              TEXT,                       -- the worker that has it
    due                INTEGER,                    -- from when it wants a worker
    ended              INTEGER,
    updated            INTEGER NOT NULL,
    inbox              INTEGER NOT NULL,           -- the number of the last row that was put into its inbox
    wait               TEXT NOT NULL,              -- what it waits for, for people
    claims             INTEGER NOT NULL,           -- how often it was claimed since it last made progress
    lost               TEXT NOT NULL,              -- how its last worker was lost: crash, lapse or nothing
    generation         INTEGER NOT NULL,           -- how often it continued as new
    reopens            INTEGER NOT NULL,           -- how often it was reopened
    side_rows          INTEGER NOT NULL,           -- whether other tables may have rows that its end must look for
    fingerprint        TEXT,                       -- of the code that it was blocked under
    deadline           INTEGER,                    -- when its time is up
    version            TEXT NOT NULL,
    seed               INTEGER NOT NULL,           -- of its random numbers
    digest             INTEGER NOT NULL,           -- of its input, to tell a second start of the same from another
    created            INTEGER NOT NULL,
    begins             INTEGER,                    -- before when it must not begin
    timeout            INTEGER,                    -- how long it may take from its beginning, in microseconds
    priority           INTEGER NOT NULL,
    parent_key         INTEGER,
    parent_id          TEXT,
    parent_location    TEXT,                       -- the call that started it
    cancel_with_parent INTEGER NOT NULL,
    unique_key         TEXT,                       -- one open run of its workflow may have it
    actor              TEXT,                       -- by whom it was started
    tenant             TEXT                        -- for whom
);
-- Due runs without an owner, of a dead worker, of this worker, by priority.
CREATE INDEX runs_open ON runs (owner, priority, due) WHERE ended IS NULL;
CREATE INDEX runs_blocked ON runs (workflow) WHERE status = 'blocked';
CREATE INDEX runs_children ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_status ON runs (status, key);
CREATE INDEX runs_workflow ON runs (workflow, key);
CREATE INDEX runs_ended ON runs (status, ended) WHERE ended IS NOT NULL;
CREATE UNIQUE INDEX runs_unique ON runs (workflow, unique_key) WHERE unique_key IS NOT NULL AND ended IS NULL;
CREATE INDEX runs_cancelled_together ON runs (parent_key) WHERE cancel_with_parent = 1 AND ended IS NULL;
CREATE INDEX runs_actor ON runs (actor, key) WHERE actor IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, key) WHERE tenant IS NOT NULL;

CREATE TABLE inputs (run INTEGER PRIMARY KEY, input TEXT NOT NULL);
CREATE TABLE results (run INTEGER PRIMARY KEY, output TEXT, error TEXT, compensation TEXT);

-- location: where in the code, sorting by bytes. seq: the order of the run's facts. kind: see replay/entry.py.
CREATE TABLE entries (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    kind     INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    data     TEXT NOT NULL,
    PRIMARY KEY (run, location, seq)
) WITHOUT ROWID;

-- reopens: how often the run had been reopened before.
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

-- kind: see InboxKind in contract/rows.py, which says what name, id and payload are then.
CREATE TABLE inbox (
    run     INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    id      TEXT NOT NULL,
    payload TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (run, n)
) WITHOUT ROWID;

-- state: live or dead. lease_until and joined count microseconds of CLOCK_BOOTTIME within one boot. lock: the name of
-- the file that the worker holds locked while it lives; empty where only the lease counts.
CREATE TABLE workers (
    id          TEXT PRIMARY KEY,
    state       TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    lease       INTEGER NOT NULL,
    boot        TEXT NOT NULL,
    lock        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    host        TEXT NOT NULL,
    joined      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE attributes (
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    run   INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) WITHOUT ROWID;
CREATE INDEX attributes_run ON attributes (run);

CREATE TABLE tombstones (
    id       TEXT PRIMARY KEY,
    workflow TEXT NOT NULL,
    digest   INTEGER NOT NULL,
    expires  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tombstones_expires ON tombstones (expires);

-- run = 0: an event.
CREATE TABLE message_ids (
    run INTEGER NOT NULL,
    id  TEXT NOT NULL,
    at  INTEGER NOT NULL,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;

CREATE TABLE replies (
    message TEXT PRIMARY KEY,
    run     INTEGER NOT NULL,
    payload TEXT NOT NULL,
    at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX replies_run ON replies (run);

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

CREATE TABLE event_waiters (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    name     TEXT NOT NULL,
    since    INTEGER NOT NULL,
    PRIMARY KEY (run, location, name)
) WITHOUT ROWID;
CREATE INDEX event_waiters_name ON event_waiters (name, since, run);

CREATE TABLE event_cursors (
    run  INTEGER NOT NULL,
    name TEXT NOT NULL,
    n    INTEGER NOT NULL,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;

-- result is null while a step holds the key. waiting counts rows of idempotency_waiters.
CREATE TABLE idempotency_keys (
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
CREATE INDEX idempotency_keys_run ON idempotency_keys (run);
CREATE INDEX idempotency_keys_expire ON idempotency_keys (expires) WHERE result IS NOT NULL;

CREATE TABLE idempotency_waiters (
    activity TEXT NOT NULL,
    key      TEXT NOT NULL,
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    PRIMARY KEY (activity, key, run, location)
) WITHOUT ROWID;
CREATE INDEX idempotency_waiters_run ON idempotency_waiters (run);

-- owner: the worker that took it.
CREATE TABLE tasks (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    queue    TEXT NOT NULL,
    activity TEXT NOT NULL,
    payload  TEXT NOT NULL,
    priority INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    owner    TEXT,
    PRIMARY KEY (run, location)
) WITHOUT ROWID;
CREATE INDEX tasks_waiting ON tasks (queue, activity, priority DESC, at) WHERE owner IS NULL;
CREATE INDEX tasks_owner ON tasks (owner) WHERE owner IS NOT NULL;

CREATE TABLE heartbeats (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    at       INTEGER NOT NULL,
    detail   TEXT NOT NULL,
    PRIMARY KEY (run, location)
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

-- run: its id, for a letter outlives its run.
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

-- run: its id, for the trail outlives its run.
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
