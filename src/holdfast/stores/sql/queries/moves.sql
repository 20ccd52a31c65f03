-- Statements about runs that go on elsewhere, for every database.

-- name: put_move
-- rows: run int, token text, address text, inbox int, paused int, until int, at int
-- Note that runs are moving.
INSERT INTO moves ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: delete_move
-- rows: run int
-- Forget that runs were moving.
DELETE FROM moves WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: read_move
-- How a run moves, or was moved.
SELECT {move} FROM moves WHERE run = $1;

-- name: adopt_run
-- rows: key int, parent_key int
-- Name the row of the parent of runs.
UPDATE runs SET parent_key = new.parent_key FROM {rows} AS new WHERE runs.key = new.key;

-- name: open_children
-- Every open child of a run.
SELECT {run} FROM runs WHERE parent_id = $1 AND ended IS NULL ORDER BY key;

-- name: waited_names
-- The names that the receives of a run wait for, and how many events are queued under each.
SELECT DISTINCT event_waiters.name, coalesce(event_queues.pending, 0) FROM event_waiters
LEFT JOIN event_queues ON event_queues.name = event_waiters.name WHERE event_waiters.run = $1 ORDER BY 1;

-- name: given_events
-- The names of events that a run was given copies of.
SELECT name FROM event_cursors WHERE run = $1 ORDER BY name;

-- name: keys_wanted
-- Idempotency keys that a run waits for, which other runs hold.
SELECT activity, key FROM idempotency_waiters WHERE run = $1 ORDER BY 1, 2;

-- name: last_message_ids
-- The last ids of messages to a run, newest first.
SELECT id FROM message_ids WHERE run = $1 ORDER BY at DESC, id LIMIT $2;
