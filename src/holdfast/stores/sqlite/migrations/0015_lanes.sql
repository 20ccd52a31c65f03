-- Runs that wait for a place, or hold one, and the lanes in which they wait: runs of one workflow with the same key.
--   lanes        in line (number), called in later (ready), or full (both null); a row only while runs wait there
--   run_places   held: -1 the run is paused, 0 it waits, 1 it holds a place; since: from when it may begin;
--                first: when the first start of its debounce window was
--   lane_begins  when the last runs of a lane began, as JSON

ALTER TABLE runs ADD COLUMN place INTEGER NOT NULL DEFAULT 0;  -- 0: needs none, 1: waits for one, 2: holds one

CREATE TABLE run_places (
    run      INTEGER PRIMARY KEY,
    workflow TEXT NOT NULL,
    lane     TEXT NOT NULL,
    held     INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    first    INTEGER
);
CREATE INDEX run_places_lane ON run_places (workflow, lane, held, priority, since, run);

CREATE TABLE lanes (
    workflow TEXT NOT NULL,
    lane     TEXT NOT NULL,
    priority INTEGER NOT NULL,
    number   INTEGER,
    ready    INTEGER,
    PRIMARY KEY (workflow, lane, priority)
) WITHOUT ROWID;
CREATE INDEX lanes_line ON lanes (workflow, priority, number) WHERE number IS NOT NULL;
CREATE INDEX lanes_ready ON lanes (workflow, ready) WHERE ready IS NOT NULL;

CREATE TABLE lane_begins (
    workflow TEXT NOT NULL,
    lane     TEXT NOT NULL,
    begun    TEXT NOT NULL,
    expires  INTEGER NOT NULL,
    PRIMARY KEY (workflow, lane)
) WITHOUT ROWID;
CREATE INDEX lane_begins_expire ON lane_begins (workflow, expires);
