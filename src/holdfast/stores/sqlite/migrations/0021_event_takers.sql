-- Which run was given the last event of a name, and when: so that a run which waits for the next one can say so. A row
-- goes with its run.
CREATE TABLE event_takers (
    name TEXT PRIMARY KEY,
    run  INTEGER NOT NULL,
    at   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX event_takers_run ON event_takers (run);
