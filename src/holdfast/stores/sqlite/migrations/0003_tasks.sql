-- Attempts of steps that any worker serving a queue may run. owner: the worker that took it.
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
