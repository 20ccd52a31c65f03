-- Workflows and queues of which nothing begins, until an operator resumes them.

CREATE TABLE pauses (
    kind  TEXT NOT NULL,     -- workflow or queue
    name  TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
