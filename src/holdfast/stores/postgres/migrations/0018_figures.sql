-- How often runs and steps ended and how long they took, added up over all workers, by minute and by hour. Buckets
-- count what took at most about 1 ms, 4 ms, ... 19 h: see contract/figures.py.
CREATE TABLE figures (
    what     TEXT COLLATE "C" NOT NULL,    -- run or step
    span     BIGINT NOT NULL,    -- a minute or an hour, in microseconds
    start    BIGINT NOT NULL,
    workflow TEXT COLLATE "C" NOT NULL,
    step     TEXT COLLATE "C" NOT NULL,    -- empty where it is about runs
    outcome  TEXT COLLATE "C" NOT NULL,
    n        BIGINT NOT NULL,
    total    BIGINT NOT NULL,    -- microseconds
    b0       BIGINT NOT NULL,
    b1       BIGINT NOT NULL,
    b2       BIGINT NOT NULL,
    b3       BIGINT NOT NULL,
    b4       BIGINT NOT NULL,
    b5       BIGINT NOT NULL,
    b6       BIGINT NOT NULL,
    b7       BIGINT NOT NULL,
    b8       BIGINT NOT NULL,
    b9       BIGINT NOT NULL,
    b10      BIGINT NOT NULL,
    b11      BIGINT NOT NULL,
    b12      BIGINT NOT NULL,
    b13      BIGINT NOT NULL,
    PRIMARY KEY (what, span, start, workflow, step, outcome)
);
