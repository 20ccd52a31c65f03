-- Workflows and queues of which nothing begins, until an operator resumes them.

CREATE TABLE pauses (
    kind  TEXT COLLATE "C" NOT NULL,  -- workflow or queue
    name  TEXT COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
);
