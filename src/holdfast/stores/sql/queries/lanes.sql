-- Statements about lanes, in which runs wait for their turn and for a place. The first parameter is the workflow, whose
-- name must be locked.

-- name: enter_lane
-- Let a lane ($2) of a priority ($3) be in line, or be called in later ($4 > $5); one that waits for a place waits on.
INSERT INTO lanes (workflow, lane, priority, number, ready)
SELECT $1, $2, $3, CASE WHEN $4 <= $5 THEN coalesce((SELECT max(number) FROM lanes
    WHERE workflow = $1 AND priority = $3 AND number IS NOT NULL), 0) + 1 END, CASE WHEN $4 > $5 THEN $4 END
WHERE TRUE ON CONFLICT (workflow, lane, priority) DO UPDATE
SET ready = CASE WHEN lanes.ready > $4 THEN $4 ELSE lanes.ready END;

-- name: put_place
-- A run that waits in a lane, or holds a place.
INSERT INTO run_places (workflow, lane, run, held, priority, since, first) VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: leave_place
-- The end of that, and where it was.
DELETE FROM run_places WHERE workflow = $1 AND run = $2 RETURNING lane;

-- name: get_place
-- Where a run waits.
SELECT lane, priority FROM run_places WHERE workflow = $1 AND run = $2;

-- name: change_place
-- A run that waits no more for now ($3 = -1), waits again ($3 = 0), or holds its place ($3 = 1); since when ($4).
UPDATE run_places SET held = $3, since = $4 WHERE workflow = $1 AND run = $2;

-- name: wake_lane
-- Let a lane that was full join the line.
UPDATE lanes SET number = 1 + coalesce((SELECT max(others.number) FROM lanes AS others
    WHERE others.workflow = $1 AND others.priority = lanes.priority AND others.number IS NOT NULL), 0)
WHERE workflow = $1 AND lane = $2 AND number IS NULL AND ready IS NULL;

-- name: recall_lanes
-- Let all lanes that were full be called in: there may be more places than before.
UPDATE lanes SET ready = $2 WHERE workflow = $1 AND number IS NULL AND ready IS NULL;

-- name: count_places
-- How many runs of a lane hold a place, or ($3 = 0) wait; counted up to a number ($4).
SELECT count(*) FROM (SELECT 1 FROM run_places WHERE workflow = $1 AND lane = $2 AND held = $3 LIMIT $4) AS found;

-- name: places_of_lane
-- The runs of a lane that hold a place or wait, up to so many ($3), those that hold one first.
SELECT run, held, first FROM run_places WHERE workflow = $1 AND lane = $2 AND held >= 0 ORDER BY held DESC LIMIT $3;

-- name: waiting_window
-- The run of a lane that a new start of its debounce window ends.
SELECT run, first FROM run_places WHERE workflow = $1 AND lane = $2 AND held <= 0 AND first IS NOT NULL;

-- name: lane_priorities
-- The priorities of a workflow's lanes that are in line, highest first: jumps from one to the next in the index.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM lanes WHERE workflow = $1 AND number IS NOT NULL
    UNION ALL
    SELECT (SELECT max(priority) FROM lanes
            WHERE workflow = $1 AND number IS NOT NULL AND lanes.priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT priority FROM levels WHERE priority IS NOT NULL;

-- name: lanes_in_line
-- The first lanes in line, of one priority.
SELECT number, lane FROM lanes WHERE workflow = $1 AND priority = $2 AND number IS NOT NULL ORDER BY number LIMIT $3;

-- name: last_number
-- The end of the line of one priority.
SELECT max(number) FROM lanes WHERE workflow = $1 AND priority = $2 AND number IS NOT NULL;

-- name: ready_lanes
-- Lanes that are to be called in.
SELECT lane, priority FROM lanes WHERE workflow = $1 AND ready <= $2 ORDER BY ready LIMIT $3;

-- name: put_number
-- A lane of a priority at its place in line, or called in later.
UPDATE lanes SET number = $4, ready = $5 WHERE workflow = $1 AND lane = $2 AND priority = $3;

-- name: stop_lane
-- A lane of every priority: called in later, or (null) when a place is free.
UPDATE lanes SET number = NULL, ready = $3 WHERE workflow = $1 AND lane = $2;

-- name: drop_lane
-- A lane in which no run waits.
DELETE FROM lanes WHERE workflow = $1 AND lane = $2 AND priority = $3;

-- name: next_in_lane
-- The run of a lane that is next.
SELECT run, since FROM run_places WHERE workflow = $1 AND lane = $2 AND held = 0 AND priority = $3
ORDER BY since, run LIMIT 1;

-- name: get_begins
-- When the last runs of a lane began.
SELECT begun FROM lane_begins WHERE workflow = $1 AND lane = $2;

-- name: put_begins
-- When the last runs of a lane began, and until when that matters.
INSERT INTO lane_begins (workflow, lane, begun, expires) VALUES ($1, $2, $3, $4)
ON CONFLICT (workflow, lane) DO UPDATE SET begun = excluded.begun, expires = excluded.expires;

-- name: old_begins
-- Lanes of which that matters no more.
DELETE FROM lane_begins WHERE workflow = $1 AND expires < $2;

-- name: lock_waiting
-- rows: key int
-- Runs that may be given their place, lowest key first.
SELECT runs.key, runs.lost, runs.status, runs.created FROM runs
WHERE runs.key IN (SELECT key FROM {rows} AS wanted) AND runs.place = 1 AND runs.ended IS NULL ORDER BY runs.key {for_update};

-- name: take_waiting
-- Make a run that waited ($3) a worker's ($1): it holds its place from here on, and its time begins.
UPDATE runs SET owner = $1, epoch = epoch + 1, due = NULL, wait = '', place = 2, claims = {taken}, lost = '', updated = $2,
    deadline = CASE WHEN timeout IS NOT NULL THEN $2 + timeout ELSE deadline END,
    status = CASE WHEN status IN ('cancelling', 'compensating') THEN status ELSE 'running' END
WHERE key = $3;

-- name: next_called
-- rows: workflow text
-- When the next lane of these workflows is called in.
SELECT min(lanes.ready) FROM {rows} AS wanted {join} lanes ON lanes.workflow = wanted.workflow AND lanes.ready IS NOT NULL;

-- name: lane_workflows
-- Workflows of which runs wait in lanes.
SELECT DISTINCT workflow FROM lanes;
