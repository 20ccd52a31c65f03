-- How often runs and steps ended and how long they took, added up over all workers, by minute and by hour. Buckets
-- count what took at most about 1 ms, 4 ms, ... 19 h: see contract/figures.py.
CREATE TABLE figures (
    what     TEXT NOT NULL,    -- run or step
    span     INTEGER NOT NULL,    -- a minute or an hour, in microseconds
    start    INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    step     TEXT NOT NULL,    -- empty where it is about runs
    outcome  TEXT NOT NULL,
    n        INTEGER NOT NULL,
    total    INTEGER NOT NULL,    -- microseconds
    b0       INTEGER NOT NULL,
    b1       INTEGER NOT NULL,
    b2       INTEGER NOT NULL,
    b3       INTEGER NOT NULL,
    b4       INTEGER NOT NULL,
    b5       INTEGER NOT NULL,
    b6       INTEGER NOT NULL,
    b7       INTEGER NOT NULL,
    b8       INTEGER NOT NULL,
    b9       INTEGER NOT NULL,
    b10      INTEGER NOT NULL,
    b11      INTEGER NOT NULL,
    b12      INTEGER NOT NULL,
    b13      INTEGER NOT NULL,
    PRIMARY KEY (what, span, start, workflow, step, outcome)
) WITHOUT ROWID;
