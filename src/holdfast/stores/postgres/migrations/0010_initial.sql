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
--
-- These are the tables of SQLite, and text sorts by bytes as there. Keys of runs are numbers that processes make without
-- asking each other; there are no sequences, foreign keys or triggers. Four tables are PostgreSQL's own:
--   commit_lock           every commit shares a lock on it; one beside which no other may be made has it exclusively
--   name_locks            a name that has no row of its own to lock (of an event, a key) locks one of these
--   commit_tokens         a row per commit whose outcome may have to be asked for, which the next one deletes
--   outbox                messages sent inside transactions of callers, until a worker delivers them

CREATE TABLE commit_lock (id INTEGER PRIMARY KEY);

CREATE TABLE name_locks (n INTEGER PRIMARY KEY);
INSERT INTO name_locks (n) SELECT generate_series(0, 1023);

-- made = 0: the commit must not happen.
CREATE TABLE commit_tokens (token TEXT COLLATE "C" PRIMARY KEY, made BIGINT NOT NULL);

CREATE TABLE outbox (n BIGINT PRIMARY KEY, message TEXT COLLATE "C" NOT NULL);

CREATE TABLE runs (
    key                BIGINT PRIMARY KEY,
    id                 TEXT COLLATE "C" NOT NULL UNIQUE,
    workflow           TEXT COLLATE "C" NOT NULL,
    status             TEXT COLLATE "C" NOT NULL,
    epoch              BIGINT NOT NULL,             -- the number of its claim: every write of its owner carries it
    owner              TEXT COLLATE "C",            -- the worker that has it
    due                BIGINT,                      -- from when it wants a worker
    ended              BIGINT,
    updated            BIGINT NOT NULL,
    inbox              BIGINT NOT NULL,             -- the number of the last row that was put into its inbox
    wait               TEXT COLLATE "C" NOT NULL,   -- what it waits for, for people
    claims             BIGINT NOT NULL,             -- how often it was claimed since it last made progress
    lost               TEXT COLLATE "C" NOT NULL,   -- how its last worker was lost: crash, lapse or nothing
    generation         BIGINT NOT NULL,             -- how often it continued as new
    reopens            BIGINT NOT NULL,             -- how often it was reopened
    side_rows          BIGINT NOT NULL,             -- whether other tables may have rows that its end must look for
    fingerprint        TEXT COLLATE "C",            -- of the code that it was blocked under
    deadline           BIGINT,                      -- when its time is up
    version            TEXT COLLATE "C" NOT NULL,
    seed               BIGINT NOT NULL,             -- of its random numbers
    digest             BIGINT NOT NULL,             -- of its input, to tell a second start of the same from another
    created            BIGINT NOT NULL,
    begins             BIGINT,                      -- before when it must not begin
    timeout            BIGINT,                      -- how long it may take from its beginning, in microseconds
    priority           BIGINT NOT NULL,
    parent_key         BIGINT,
    parent_id          TEXT COLLATE "C",
    parent_location    TEXT COLLATE "C",            -- the call that started it
    cancel_with_parent BIGINT NOT NULL,
    unique_key         TEXT COLLATE "C",            -- one open run of its workflow may have it
    actor              TEXT COLLATE "C",            -- by whom it was started
    tenant             TEXT COLLATE "C"             -- for whom
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
-- Runs that may be claimed, workflow by workflow; those that were claimed before without progress; those of a worker.
CREATE INDEX runs_due ON runs (workflow, priority, due, key)
    WHERE ended IS NULL AND owner IS NULL AND due IS NOT NULL AND claims = 0;
CREATE INDEX runs_stuck ON runs (due) WHERE ended IS NULL AND due IS NOT NULL AND claims > 0;
CREATE INDEX runs_owned ON runs (owner, due) WHERE ended IS NULL AND owner IS NOT NULL;
CREATE INDEX runs_blocked ON runs (workflow) WHERE status = 'blocked';
CREATE INDEX runs_children ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_status ON runs (status, key);
CREATE INDEX runs_workflow ON runs (workflow, key);
CREATE INDEX runs_ended ON runs (status, ended) WHERE ended IS NOT NULL;
CREATE UNIQUE INDEX runs_unique ON runs (workflow, unique_key) WHERE unique_key IS NOT NULL AND ended IS NULL;
CREATE INDEX runs_cancelled_together ON runs (parent_key) WHERE cancel_with_parent = 1 AND ended IS NULL;
CREATE INDEX runs_actor ON runs (actor, key) WHERE actor IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, key) WHERE tenant IS NOT NULL;

CREATE TABLE inputs (run BIGINT PRIMARY KEY, input TEXT COLLATE "C" NOT NULL);
CREATE TABLE results (run BIGINT PRIMARY KEY, output TEXT COLLATE "C", error TEXT COLLATE "C", compensation TEXT COLLATE "C");

-- location: where in the code, sorting by bytes. seq: the order of the run's facts. kind: see replay/entry.py.
CREATE TABLE entries (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    seq      BIGINT NOT NULL,
    kind     BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    data     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, location, seq)
);

-- reopens: how often the run had been reopened before.
CREATE TABLE archive (
    run      BIGINT NOT NULL,
    reopens  BIGINT NOT NULL,
    seq      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    kind     BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    data     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, reopens, seq, location)
);

-- kind: see InboxKind in contract/rows.py, which says what name, id and payload are then.
CREATE TABLE inbox (
    run     BIGINT NOT NULL,
    n       BIGINT NOT NULL,
    kind    TEXT COLLATE "C" NOT NULL,
    name    TEXT COLLATE "C" NOT NULL,
    id      TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (run, n)
);

-- state: live or dead. lease_until and joined are of the database's clock. session and session_begun name the connection
-- by which the lease is renewed: while it is there, a worker that is silent hangs; when it is gone, the worker died.
-- machine tells whether the pid means anything there.
CREATE TABLE workers (
    id            TEXT COLLATE "C" PRIMARY KEY,
    state         TEXT COLLATE "C" NOT NULL,
    lease_until   BIGINT NOT NULL,
    lease         BIGINT NOT NULL,
    session       BIGINT NOT NULL,
    session_begun TEXT COLLATE "C" NOT NULL,
    machine       TEXT COLLATE "C" NOT NULL,
    pid           BIGINT NOT NULL,
    host          TEXT COLLATE "C" NOT NULL,
    joined        BIGINT NOT NULL
);

CREATE TABLE attributes (
    name  TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    run   BIGINT NOT NULL,
    PRIMARY KEY (name, value, run)
);
CREATE INDEX attributes_run ON attributes (run);

CREATE TABLE tombstones (
    id       TEXT COLLATE "C" PRIMARY KEY,
    workflow TEXT COLLATE "C" NOT NULL,
    digest   BIGINT NOT NULL,
    expires  BIGINT NOT NULL
);
CREATE INDEX tombstones_expires ON tombstones (expires);

-- run = 0: an event.
CREATE TABLE message_ids (
    run BIGINT NOT NULL,
    id  TEXT COLLATE "C" NOT NULL,
    at  BIGINT NOT NULL,
    PRIMARY KEY (run, id)
);

CREATE TABLE replies (
    message TEXT COLLATE "C" PRIMARY KEY,
    run     BIGINT NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    at      BIGINT NOT NULL
);
CREATE INDEX replies_run ON replies (run);

-- Numbered per name.
CREATE TABLE events (
    name    TEXT COLLATE "C" NOT NULL,
    n       BIGINT NOT NULL,
    id      TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (name, n)
);
CREATE INDEX events_age ON events (name, at);
CREATE INDEX events_at ON events (at);

-- last: the number of the newest event of the name.
CREATE TABLE event_queues (
    name    TEXT COLLATE "C" PRIMARY KEY,
    pending BIGINT NOT NULL,
    last    BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE event_waiters (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    since    BIGINT NOT NULL,
    PRIMARY KEY (run, location, name)
);
CREATE INDEX event_waiters_name ON event_waiters (name, since, run, location);

CREATE TABLE event_cursors (
    run  BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    n    BIGINT NOT NULL,
    PRIMARY KEY (run, name)
);

-- result is null while a step holds the key. waiting counts rows of idempotency_waiters.
CREATE TABLE idempotency_keys (
    activity TEXT COLLATE "C" NOT NULL,
    key      TEXT COLLATE "C" NOT NULL,
    digest   BIGINT NOT NULL,
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    result   TEXT COLLATE "C",
    expires  BIGINT NOT NULL,
    waiting  BIGINT NOT NULL,
    PRIMARY KEY (activity, key)
);
CREATE INDEX idempotency_keys_run ON idempotency_keys (run);
CREATE INDEX idempotency_keys_expire ON idempotency_keys (expires) WHERE result IS NOT NULL;

CREATE TABLE idempotency_waiters (
    activity TEXT COLLATE "C" NOT NULL,
    key      TEXT COLLATE "C" NOT NULL,
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (activity, key, run, location)
);
CREATE INDEX idempotency_waiters_run ON idempotency_waiters (run);

-- owner: the worker that took it.
CREATE TABLE tasks (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    attempt  BIGINT NOT NULL,
    queue    TEXT COLLATE "C" NOT NULL,
    activity TEXT COLLATE "C" NOT NULL,
    payload  TEXT COLLATE "C" NOT NULL,
    priority BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    owner    TEXT COLLATE "C",
    PRIMARY KEY (run, location)
);
CREATE INDEX tasks_waiting ON tasks (queue, activity, priority DESC, at) WHERE owner IS NULL;
CREATE INDEX tasks_owner ON tasks (owner) WHERE owner IS NOT NULL;

CREATE TABLE heartbeats (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    at       BIGINT NOT NULL,
    detail   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, location)
);

CREATE TABLE schedules (
    id       TEXT COLLATE "C" PRIMARY KEY,
    workflow TEXT COLLATE "C" NOT NULL,
    spec     TEXT COLLATE "C" NOT NULL,
    input    TEXT COLLATE "C" NOT NULL,
    next     BIGINT,
    paused   BIGINT NOT NULL,
    last_run TEXT COLLATE "C",
    created  BIGINT NOT NULL,
    updated  BIGINT NOT NULL
);
CREATE INDEX schedules_next ON schedules (next) WHERE next IS NOT NULL AND paused = 0;

-- run: its id, for a letter outlives its run.
CREATE TABLE dead_letters (
    id            TEXT COLLATE "C" PRIMARY KEY,
    kind          TEXT COLLATE "C" NOT NULL,
    run           TEXT COLLATE "C" NOT NULL,
    workflow      TEXT COLLATE "C" NOT NULL,
    step          TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    attempts      BIGINT NOT NULL,
    error         TEXT COLLATE "C",
    payload       TEXT COLLATE "C" NOT NULL,
    target_status TEXT COLLATE "C" NOT NULL,
    sent          BIGINT,
    at            BIGINT NOT NULL,
    acknowledged  BIGINT,
    outcome       TEXT COLLATE "C" NOT NULL
);
CREATE INDEX dead_letters_run ON dead_letters (run);
CREATE INDEX dead_letters_open ON dead_letters (kind, id) WHERE acknowledged IS NULL;

CREATE TABLE audit (
    n        BIGINT PRIMARY KEY,
    at       BIGINT NOT NULL,
    actor    TEXT COLLATE "C" NOT NULL,
    action   TEXT COLLATE "C" NOT NULL,
    target   TEXT COLLATE "C" NOT NULL,
    detail   TEXT COLLATE "C" NOT NULL,
    previous TEXT COLLATE "C" NOT NULL,
    hash     TEXT COLLATE "C" NOT NULL
);
CREATE INDEX audit_target ON audit (target, n);

-- run: its id, for the trail outlives its run.
CREATE TABLE evidence (
    run      TEXT COLLATE "C" NOT NULL,
    n        BIGINT NOT NULL,
    id       TEXT COLLATE "C" NOT NULL,
    kind     TEXT COLLATE "C" NOT NULL,
    data     TEXT COLLATE "C" NOT NULL,
    at       BIGINT NOT NULL,
    previous TEXT COLLATE "C" NOT NULL,
    hash     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, n)
);
