-- The tables of SQLite, all at once. Text sorts by bytes, as there. Keys are numbers that processes make without asking
-- each other; there are no sequences, foreign keys or triggers.

-- Every commit shares a lock on this table; one beside which no other may be made has it exclusively.
CREATE TABLE commit_lock (id INTEGER PRIMARY KEY);

-- A name that has no row of its own to lock (of an event, an idempotency key) locks one of these.
CREATE TABLE name_locks (n INTEGER PRIMARY KEY);
INSERT INTO name_locks (n) SELECT generate_series(0, 1023);

-- A row per commit whose outcome may have to be asked for; each deletes the one before it. made = 0: it must not happen.
CREATE TABLE commit_tokens (token TEXT COLLATE "C" PRIMARY KEY, made BIGINT NOT NULL);

-- Messages sent inside transactions of others, until a worker delivers them.
CREATE TABLE outbox (n BIGINT PRIMARY KEY, message TEXT COLLATE "C" NOT NULL);

-- A run: small and hot. Big values live in inputs and results, so that a change of status never rewrites them.
CREATE TABLE runs (
    key             BIGINT PRIMARY KEY,
    id              TEXT COLLATE "C" NOT NULL UNIQUE,
    workflow        TEXT COLLATE "C" NOT NULL,
    version         TEXT COLLATE "C" NOT NULL,
    status          TEXT COLLATE "C" NOT NULL,
    wait            TEXT COLLATE "C" NOT NULL,
    due             BIGINT,
    epoch           BIGINT NOT NULL,
    owner           TEXT COLLATE "C",
    generation      BIGINT NOT NULL,
    inbox           BIGINT NOT NULL,
    claims          BIGINT NOT NULL,
    lost            TEXT COLLATE "C" NOT NULL,
    seed            BIGINT NOT NULL,
    digest          BIGINT NOT NULL,
    parent          BIGINT,
    parent_id       TEXT COLLATE "C",
    parent_location TEXT COLLATE "C",
    fingerprint     TEXT COLLATE "C",
    created         BIGINT NOT NULL,
    updated         BIGINT NOT NULL,
    ended           BIGINT,
    priority        BIGINT NOT NULL DEFAULT 0,
    begins          BIGINT,
    timeout         BIGINT,
    deadline        BIGINT,
    unique_key      TEXT COLLATE "C",
    actor           TEXT COLLATE "C",
    tenant          TEXT COLLATE "C",
    follows         BIGINT NOT NULL DEFAULT 0,
    reopens         BIGINT NOT NULL DEFAULT 0,
    traces          BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Who may be claimed, workflow by workflow, and who is watched because nobody got anywhere with it.
CREATE INDEX runs_due ON runs (workflow, priority, due, key)
    WHERE ended IS NULL AND owner IS NULL AND due IS NOT NULL AND claims = 0;
CREATE INDEX runs_suspect ON runs (due) WHERE ended IS NULL AND due IS NOT NULL AND claims > 0;
CREATE INDEX runs_owned ON runs (owner, due) WHERE ended IS NULL AND owner IS NOT NULL;
CREATE INDEX runs_blocked ON runs (workflow) WHERE status = 'blocked';
CREATE INDEX runs_children ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_status ON runs (status, key);
CREATE INDEX runs_workflow ON runs (workflow, key);
CREATE INDEX runs_ended ON runs (status, ended) WHERE ended IS NOT NULL;
CREATE UNIQUE INDEX runs_unique ON runs (workflow, unique_key) WHERE unique_key IS NOT NULL AND ended IS NULL;
CREATE INDEX runs_following ON runs (parent) WHERE follows = 1 AND ended IS NULL;
CREATE INDEX runs_actor ON runs (actor, key) WHERE actor IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, key) WHERE tenant IS NOT NULL;

CREATE TABLE inputs (run BIGINT PRIMARY KEY, input TEXT COLLATE "C" NOT NULL);
CREATE TABLE results (
    run BIGINT PRIMARY KEY, output TEXT COLLATE "C", error TEXT COLLATE "C", compensation TEXT COLLATE "C"
);

CREATE TABLE entries (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    seq      BIGINT NOT NULL,
    kind     BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    data     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, location, seq)
);

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

-- lease_until is of the database's clock. session and begun name the connection that renews the lease: while it is there, a
-- worker that is silent hangs; when it is gone, it died. machine tells whether its pid means anything here.
CREATE TABLE workers (
    id          TEXT COLLATE "C" PRIMARY KEY,
    lease_until BIGINT NOT NULL,
    lease       BIGINT NOT NULL,
    session     BIGINT NOT NULL,
    begun       TEXT COLLATE "C" NOT NULL,
    machine     TEXT COLLATE "C" NOT NULL,
    pid         BIGINT NOT NULL,
    host        TEXT COLLATE "C" NOT NULL,
    joined      BIGINT NOT NULL,
    state       TEXT COLLATE "C" NOT NULL
);

CREATE TABLE attributes (
    name  TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    run   BIGINT NOT NULL,
    PRIMARY KEY (name, value, run)
);
CREATE INDEX attributes_run ON attributes (run);

-- Facts cut away when a run was reopened, by the number of times it had been before.
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

-- Ids of runs that were purged, so that they are not used for another by accident.
CREATE TABLE tombstones (
    id       TEXT COLLATE "C" PRIMARY KEY,
    workflow TEXT COLLATE "C" NOT NULL,
    digest   BIGINT NOT NULL,
    expires  BIGINT NOT NULL
);
CREATE INDEX tombstones_expires ON tombstones (expires);

-- Ids of messages and events that must not be taken twice. run = 0: an event.
CREATE TABLE message_ids (
    run BIGINT NOT NULL, id TEXT COLLATE "C" NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (run, id)
);
CREATE TABLE replies (
    message TEXT COLLATE "C" PRIMARY KEY, run BIGINT NOT NULL, payload TEXT COLLATE "C" NOT NULL, at BIGINT NOT NULL
);
CREATE INDEX replies_run ON replies (run);

-- Events nobody has taken, or that stay for later waiters, numbered per name; how many there are; who waits; who saw what.
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
CREATE TABLE event_queues (
    name TEXT COLLATE "C" PRIMARY KEY, pending BIGINT NOT NULL, last BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE waiters (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    since    BIGINT NOT NULL,
    PRIMARY KEY (run, location, name)
);
CREATE INDEX waiters_name ON waiters (name, since, run, location);
CREATE TABLE cursors (
    run BIGINT NOT NULL, name TEXT COLLATE "C" NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (run, name)
);

-- Idempotency keys: held by a step (result is null) or with the result of one. waiting counts rows of key_waiters.
CREATE TABLE keys (
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
CREATE INDEX keys_run ON keys (run);
CREATE INDEX keys_expire ON keys (expires) WHERE result IS NOT NULL;
CREATE TABLE key_waiters (
    activity TEXT COLLATE "C" NOT NULL,
    key      TEXT COLLATE "C" NOT NULL,
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (activity, key, run, location)
);
CREATE INDEX key_waiters_run ON key_waiters (run);

CREATE TABLE heartbeats (
    run      BIGINT NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    at       BIGINT NOT NULL,
    detail   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, location)
);

-- Work and events given up on. run is the public id: a letter outlives its run.
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

-- Append only. Each row carries the hash of the one before it: audit over the whole store, evidence per run.
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

-- Attempts of steps that any worker serving a queue may run. owner: the worker that took it.
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
