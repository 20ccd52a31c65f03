-- Which run was given the last event of a name, and when: so that a run which waits for the next one can say so. A row
-- goes with its run.
CREATE TABLE event_takers (
    name TEXT COLLATE "C" PRIMARY KEY,
    run  BIGINT NOT NULL,
    at   BIGINT NOT NULL
);
CREATE INDEX event_takers_run ON event_takers (run);
