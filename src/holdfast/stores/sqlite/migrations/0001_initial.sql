-- A run: small and hot. Big values live in inputs and results, so that a change of status never rewrites them.
CREATE TABLE runs (
    key             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    workflow        TEXT NOT NULL,
    version         TEXT NOT NULL,
    status          TEXT NOT NULL,
    wait            TEXT NOT NULL,
    due             INTEGER,
    epoch           INTEGER NOT NULL,
    owner           TEXT,
    generation      INTEGER NOT NULL,
    inbox           INTEGER NOT NULL,
    claims          INTEGER NOT NULL,
    lost            TEXT NOT NULL,
    seed            INTEGER NOT NULL,
    digest          INTEGER NOT NULL,
    parent          INTEGER,
    parent_id       TEXT,
    parent_location TEXT,
    fingerprint     TEXT,
    created         INTEGER NOT NULL,
    updated         INTEGER NOT NULL,
    ended           INTEGER
);

-- Who wants attention: due runs of nobody, of a dead worker, of this worker.
CREATE INDEX runs_open ON runs (owner, due) WHERE ended IS NULL;
CREATE INDEX runs_blocked ON runs (workflow) WHERE status = 'blocked';
CREATE INDEX runs_children ON runs (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE inputs (run INTEGER PRIMARY KEY, input TEXT NOT NULL);
CREATE TABLE results (run INTEGER PRIMARY KEY, output TEXT, error TEXT);

CREATE TABLE entries (
    run      INTEGER NOT NULL,
    location TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    kind     INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    data     TEXT NOT NULL,
    PRIMARY KEY (run, location, seq)
) WITHOUT ROWID;

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

-- lease_until counts microseconds of CLOCK_BOOTTIME within one boot.
CREATE TABLE workers (
    id          TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    lease       INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    host        TEXT NOT NULL,
    lock        TEXT NOT NULL,
    joined      INTEGER NOT NULL,
    state       TEXT NOT NULL
) WITHOUT ROWID;
