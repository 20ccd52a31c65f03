-- Statements of export and import that do not follow from the columns of a table; all others are made by sql/transfer.py.

-- name: export_runs
-- A page of runs whose keys lie between two numbers, beyond one; parent_key is 1 where the parent is there and not another run that was given its id later.
SELECT {moved_run} FROM runs LEFT JOIN runs AS family ON family.key = runs.parent_key
WHERE runs.key BETWEEN $1 AND $2 AND runs.key > $3 ORDER BY runs.key LIMIT $4;

-- name: export_event_cursors
-- Which events runs have seen, told as how many are queued that they have not: other databases number them otherwise.
SELECT run, name, (SELECT count(*) FROM events WHERE events.name = event_cursors.name AND events.n > event_cursors.n) FROM event_cursors
WHERE run BETWEEN $1 AND $2 AND (run, name) > ($3, $4) ORDER BY run, name LIMIT $5;

-- name: order_events
-- Which events wait, in the order of their numbers.
SELECT n, name FROM events WHERE (n, name) > ($1, $2) ORDER BY n, name LIMIT $3;

-- name: export_events
-- rows: n int, name text
-- Some of them. They come before the runs, which say how many they have not seen.
SELECT {event}
FROM {rows} AS wanted {join} events ON events.name = wanted.name AND events.n = wanted.n;

-- name: known_workers
-- Workers that are there, or were.
SELECT id, pid, host, state FROM workers ORDER BY id;

-- name: count_all_runs
-- How many runs there are.
SELECT count(*) FROM runs;

-- name: existing_runs
-- rows: id text
-- Runs by their public ids.
SELECT runs.id, runs.key FROM {rows} AS wanted {join} runs ON runs.id = wanted.id;

-- name: existing_unique
-- rows: workflow text, unique_key text
-- Open runs that have a unique key: those whose end is decided have none any more.
SELECT runs.workflow, runs.unique_key, runs.id FROM {rows} AS wanted
{join} runs ON runs.workflow = wanted.workflow AND runs.unique_key = wanted.unique_key AND runs.ended IS NULL
AND (runs.conclusion IS NULL OR runs.conclusion = 'open');

-- name: seen_event
-- The number of the newest event under a name but some ($2).
SELECT n FROM events WHERE name = $1 ORDER BY n DESC LIMIT 1 OFFSET $2;

-- name: imported_before
-- When a file was imported.
SELECT at FROM audit WHERE target = $1 AND action = 'import' ORDER BY n LIMIT 1;

-- name: has_events_or_waiters
-- Whether there are events or waits for them.
SELECT 1 WHERE EXISTS (SELECT 1 FROM events) OR EXISTS (SELECT 1 FROM event_waiters);

-- name: import_message_ids
-- rows: message_ids
-- Ids of messages, and (run 0) of events, one of which may have been published in both databases.
INSERT INTO message_ids ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: import_event_queues
-- rows: event_queues
-- Names under which events were queued, before the events are counted.
INSERT INTO event_queues (name, pending) SELECT name, 0 FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: join_families
-- Tell runs that came with their parent (parent_key = -1) what its key is here.
UPDATE runs SET parent_key = (SELECT family.key FROM runs AS family WHERE family.id = runs.parent_id) WHERE parent_key = -1;

-- name: wake_waiting
-- Let runs that wait for an event which is queued begin to wait again, and be given it: it came with another database.
UPDATE runs SET owner = NULL, epoch = epoch + 1, due = $1 WHERE ended IS NULL AND status = 'suspended' AND key IN (
    SELECT event_waiters.run FROM event_waiters JOIN event_queues ON event_queues.name = event_waiters.name AND event_queues.pending > 0);

-- name: import_pauses
-- rows: pauses
-- Pauses, some of which may stand in both databases.
INSERT INTO pauses ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: open_lanes
-- Let the lanes be there in which runs wait that came from another database; they are called in.
INSERT INTO lanes (workflow, lane, priority, ready)
SELECT workflow, lane, priority, min(since) FROM run_places WHERE held = 0 GROUP BY workflow, lane, priority
ON CONFLICT DO NOTHING;
