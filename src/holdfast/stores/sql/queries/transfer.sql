-- Statements of moving house, for every database. `copy_` reads a page of a table on behalf of the runs whose keys lie
-- between two numbers ($1, $2), beyond a position, up to a limit; `stray_` reads what belongs to no run that is there;
-- `there_` looks for rows that would be in the way; `bring_` writes, and its columns are those of the file.

-- name: copy_runs
-- The runs themselves; parent is 1 where the parent is there and not another run that was given its id later.
SELECT {moved_run} FROM runs LEFT JOIN runs AS family ON family.key = runs.parent
WHERE runs.key BETWEEN $1 AND $2 AND runs.key > $3 ORDER BY runs.key LIMIT $4;

-- name: copy_inputs
-- Their inputs.
SELECT run, input FROM inputs WHERE run BETWEEN $1 AND $2 AND run > $3 ORDER BY run LIMIT $4;

-- name: copy_results
-- Their results.
SELECT run, output, error, compensation FROM results WHERE run BETWEEN $1 AND $2 AND run > $3 ORDER BY run LIMIT $4;

-- name: copy_entries
-- Their histories.
SELECT run, location, seq, kind, at, data FROM entries
WHERE run BETWEEN $1 AND $2 AND (run, location, seq) > ($3, $4, $5) ORDER BY run, location, seq LIMIT $6;

-- name: copy_archive
-- What was cut away of them.
SELECT run, reopens, seq, location, kind, at, data FROM archive
WHERE run BETWEEN $1 AND $2 AND (run, reopens, seq, location) > ($3, $4, $5, $6)
ORDER BY run, reopens, seq, location LIMIT $7;

-- name: copy_inbox
-- What they have not read.
SELECT run, n, kind, name, id, payload, at FROM inbox
WHERE run BETWEEN $1 AND $2 AND (run, n) > ($3, $4) ORDER BY run, n LIMIT $5;

-- name: copy_attributes
-- Their searchable attributes.
SELECT run, name, value FROM attributes
WHERE run BETWEEN $1 AND $2 AND (run, name, value) > ($3, $4, $5) ORDER BY run, name, value LIMIT $6;

-- name: copy_message_ids
-- The ids of the messages they were sent.
SELECT run, id, at FROM message_ids
WHERE run BETWEEN $1 AND $2 AND (run, id) > ($3, $4) ORDER BY run, id LIMIT $5;

-- name: copy_replies
-- Their answers to requests.
SELECT run, message, payload, at FROM replies
WHERE run BETWEEN $1 AND $2 AND (run, message) > ($3, $4) ORDER BY run, message LIMIT $5;

-- name: copy_waiters
-- The events they wait for.
SELECT run, location, name, since FROM waiters
WHERE run BETWEEN $1 AND $2 AND (run, location, name) > ($3, $4, $5) ORDER BY run, location, name LIMIT $6;

-- name: copy_cursors
-- Which events they have seen, told as how many are queued that they have not: numbers are given anew elsewhere.
SELECT run, name, (SELECT count(*) FROM events WHERE events.name = cursors.name AND events.n > cursors.n) FROM cursors
WHERE run BETWEEN $1 AND $2 AND (run, name) > ($3, $4) ORDER BY run, name LIMIT $5;

-- name: copy_keys
-- The idempotency keys they hold or left results under.
SELECT run, activity, key, digest, location, result, expires, waiting FROM keys
WHERE run BETWEEN $1 AND $2 AND (run, activity, key) > ($3, $4, $5) ORDER BY run, activity, key LIMIT $6;

-- name: copy_key_waiters
-- The idempotency keys they wait for.
SELECT run, activity, key, location FROM key_waiters
WHERE run BETWEEN $1 AND $2 AND (run, activity, key, location) > ($3, $4, $5, $6)
ORDER BY run, activity, key, location LIMIT $7;

-- name: copy_heartbeats
-- When their steps last reported progress.
SELECT run, location, at, detail FROM heartbeats
WHERE run BETWEEN $1 AND $2 AND (run, location) > ($3, $4) ORDER BY run, location LIMIT $5;

-- name: copy_tasks
-- Their attempts that wait in a queue, or that a worker took from one.
SELECT run, location, attempt, queue, activity, payload, priority, at, owner FROM tasks
WHERE run BETWEEN $1 AND $2 AND (run, location) > ($3, $4) ORDER BY run, location LIMIT $5;

-- name: copy_dead_letters
-- Their dead letters; the first column is the key of the run.
SELECT runs.key, dead_letters.id, dead_letters.kind, dead_letters.run, dead_letters.workflow, dead_letters.step,
       dead_letters.name, dead_letters.attempts, dead_letters.error, dead_letters.payload, dead_letters.target_status,
       dead_letters.sent, dead_letters.at, dead_letters.acknowledged, dead_letters.outcome
FROM runs JOIN dead_letters ON dead_letters.run = runs.id
WHERE runs.key BETWEEN $1 AND $2 AND (runs.key, dead_letters.id) > ($3, $4)
ORDER BY runs.key, dead_letters.id LIMIT $5;

-- name: copy_evidence
-- Their own trails; the first column is the key of the run.
SELECT runs.key, evidence.run, evidence.n, evidence.id, evidence.kind, evidence.data, evidence.at, evidence.previous,
       evidence.hash
FROM runs JOIN evidence ON evidence.run = runs.id
WHERE runs.key BETWEEN $1 AND $2 AND (runs.key, evidence.run, evidence.n) > ($3, $4, $5)
ORDER BY runs.key, evidence.run, evidence.n LIMIT $6;

-- name: stray_message_ids
-- The ids of events that must not be published twice.
SELECT run, id, at FROM message_ids WHERE run = 0 AND id > $1 ORDER BY id LIMIT $2;

-- name: stray_keys
-- Results under idempotency keys whose runs are gone.
SELECT 0, keys.activity, keys.key, keys.digest, keys.location, keys.result, keys.expires, keys.waiting
FROM keys LEFT JOIN runs ON runs.key = keys.run
WHERE runs.key IS NULL AND (keys.activity, keys.key) > ($1, $2) ORDER BY keys.activity, keys.key LIMIT $3;

-- name: stray_dead_letters
-- Dead letters of runs that are gone, or of none.
SELECT dead_letters.id, dead_letters.kind, dead_letters.run, dead_letters.workflow, dead_letters.step,
       dead_letters.name, dead_letters.attempts, dead_letters.error, dead_letters.payload, dead_letters.target_status,
       dead_letters.sent, dead_letters.at, dead_letters.acknowledged, dead_letters.outcome
FROM dead_letters LEFT JOIN runs ON runs.id = dead_letters.run
WHERE runs.id IS NULL AND dead_letters.id > $1 ORDER BY dead_letters.id LIMIT $2;

-- name: stray_evidence
-- Trails of runs that are gone.
SELECT evidence.run, evidence.n, evidence.id, evidence.kind, evidence.data, evidence.at, evidence.previous, evidence.hash
FROM evidence LEFT JOIN runs ON runs.id = evidence.run
WHERE runs.id IS NULL AND (evidence.run, evidence.n) > ($1, $2) ORDER BY evidence.run, evidence.n LIMIT $3;

-- name: stray_tombstones
-- Ids of runs that were purged.
SELECT id, workflow, digest, expires FROM tombstones WHERE id > $1 ORDER BY id LIMIT $2;

-- name: stray_schedules
-- Schedules.
SELECT id, workflow, spec, input, next, paused, last_run, created, updated FROM schedules
WHERE id > $1 ORDER BY id LIMIT $2;

-- name: order_events
-- Which events wait, in the order of their numbers.
SELECT n, name FROM events WHERE (n, name) > ($1, $2) ORDER BY n, name LIMIT $3;

-- name: stray_events
-- rows: n int, name text
-- Some of them. They come before the runs, which say how many they have not seen.
SELECT events.name, events.n, events.id, events.payload, events.at
FROM {rows} AS wanted {join} events ON events.name = wanted.name AND events.n = wanted.n;

-- name: stray_event_queues
-- Names under which events were queued.
SELECT name, pending FROM event_queues WHERE name > $1 ORDER BY name LIMIT $2;

-- name: stray_audit
-- What people did.
SELECT n, at, actor, action, target, detail, previous, hash FROM audit WHERE n > $1 ORDER BY n LIMIT $2;

-- name: known_workers
-- Workers that are there, or were.
SELECT id, pid, host, state FROM workers ORDER BY id;

-- name: count_moving
-- How many runs there are.
SELECT count(*) FROM runs;

-- name: there_runs
-- rows: id text
-- Runs by their public ids.
SELECT runs.id, runs.key FROM {rows} AS wanted {join} runs ON runs.id = wanted.id;

-- name: there_unique
-- rows: workflow text, unique_key text
-- Open runs that have a unique key.
SELECT runs.workflow, runs.unique_key, runs.id FROM {rows} AS wanted
{join} runs ON runs.workflow = wanted.workflow AND runs.unique_key = wanted.unique_key AND runs.ended IS NULL;

-- name: there_replies
-- rows: message text
-- Answers to requests.
SELECT replies.run, replies.message, replies.payload, replies.at
FROM {rows} AS wanted {join} replies ON replies.message = wanted.message;

-- name: there_keys
-- rows: activity text, key text
-- Idempotency keys.
SELECT keys.run, keys.activity, keys.key, keys.digest, keys.location, keys.result, keys.expires, keys.waiting
FROM {rows} AS wanted {join} keys ON keys.activity = wanted.activity AND keys.key = wanted.key;

-- name: there_dead_letters
-- rows: id text
-- Dead letters.
SELECT dead_letters.id, dead_letters.kind, dead_letters.run, dead_letters.workflow, dead_letters.step,
       dead_letters.name, dead_letters.attempts, dead_letters.error, dead_letters.payload, dead_letters.target_status,
       dead_letters.sent, dead_letters.at, dead_letters.acknowledged, dead_letters.outcome
FROM {rows} AS wanted {join} dead_letters ON dead_letters.id = wanted.id;

-- name: there_evidence
-- rows: run text, n int
-- Rows of runs' own trails.
SELECT evidence.run, evidence.n, evidence.id, evidence.kind, evidence.data, evidence.at, evidence.previous, evidence.hash
FROM {rows} AS wanted {join} evidence ON evidence.run = wanted.run AND evidence.n = wanted.n;

-- name: there_tombstones
-- rows: id text
-- Ids of runs that were purged.
SELECT tombstones.id, tombstones.workflow, tombstones.digest, tombstones.expires
FROM {rows} AS wanted {join} tombstones ON tombstones.id = wanted.id;

-- name: there_schedules
-- rows: id text
-- Schedules.
SELECT schedules.id, schedules.workflow, schedules.spec, schedules.input, schedules.next, schedules.paused,
       schedules.last_run, schedules.created, schedules.updated
FROM {rows} AS wanted {join} schedules ON schedules.id = wanted.id;

-- name: there_audit
-- rows: n int
-- The hashes of rows of the audit trail.
SELECT audit.n, audit.hash FROM {rows} AS wanted {join} audit ON audit.n = wanted.n;

-- name: seen_event
-- The number of the newest event under a name but some ($2).
SELECT n FROM events WHERE name = $1 ORDER BY n DESC LIMIT 1 OFFSET $2;

-- name: moved_before
-- When a file was imported.
SELECT at FROM audit WHERE target = $1 AND action = 'import' ORDER BY n LIMIT 1;

-- name: anybody_waits
-- Whether there are events or waits for them.
SELECT 1 WHERE EXISTS (SELECT 1 FROM events) OR EXISTS (SELECT 1 FROM waiters);

-- name: bring_runs
-- rows: runs
-- Runs.
INSERT INTO runs ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_inputs
-- rows: run int, input text
-- Inputs.
INSERT INTO inputs ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_results
-- rows: run int, output text, error text, compensation text
-- Results.
INSERT INTO results ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_entries
-- rows: run int, location text, seq int, kind int, at int, data text
-- Histories.
INSERT INTO entries ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_archive
-- rows: run int, reopens int, seq int, location text, kind int, at int, data text
-- What was cut away of them.
INSERT INTO archive ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_inbox
-- rows: run int, n int, kind text, name text, id text, payload text, at int
-- What runs have not read.
INSERT INTO inbox ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_attributes
-- rows: run int, name text, value text
-- Searchable attributes.
INSERT INTO attributes ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_message_ids
-- rows: run int, id text, at int
-- Ids of messages, and (run 0) of events, one of which may have been published in both houses.
INSERT INTO message_ids ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: bring_replies
-- rows: run int, message text, payload text, at int
-- Answers to requests.
INSERT INTO replies ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_waiters
-- rows: run int, location text, name text, since int
-- Receives that wait.
INSERT INTO waiters ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_cursors
-- rows: run int, name text, n int
-- Which events runs have seen.
INSERT INTO cursors ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_keys
-- rows: run int, activity text, key text, digest int, location text, result text, expires int, waiting int
-- Idempotency keys.
INSERT INTO keys ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_key_waiters
-- rows: run int, activity text, key text, location text
-- Who waits for them.
INSERT INTO key_waiters ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_heartbeats
-- rows: run int, location text, at int, detail text
-- Progress of steps.
INSERT INTO heartbeats ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_tasks
-- rows: run int, location text, attempt int, queue text, activity text, payload text, priority int, at int, owner text
-- Attempts in queues.
INSERT INTO tasks ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_dead_letters
-- rows: id text, kind text, run text, workflow text, step text, name text, attempts int, error text, payload text, target_status text, sent int, at int, acknowledged int, outcome text
-- Dead letters.
INSERT INTO dead_letters ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_evidence
-- rows: run text, n int, id text, kind text, data text, at int, previous text, hash text
-- Trails of runs.
INSERT INTO evidence ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_tombstones
-- rows: id text, workflow text, digest int, expires int
-- Ids of runs that were purged.
INSERT INTO tombstones ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_schedules
-- rows: id text, workflow text, spec text, input text, next int, paused int, last_run text, created int, updated int
-- Schedules.
INSERT INTO schedules ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: bring_events
-- rows: name text, n int, id text, payload text, at int
-- What the file says of an event; it is written by insert_event, which gives it its number.
SELECT {columns} FROM {rows} AS new;

-- name: bring_event_queues
-- rows: name text, pending int
-- Names under which events were queued, before the events are counted.
INSERT INTO event_queues (name, pending) SELECT name, 0 FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: bring_audit
-- rows: n int, at int, actor text, action text, target text, detail text, previous text, hash text
-- What people did.
INSERT INTO audit ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: join_families
-- Tell runs that came with their parent (parent = -1) what its key is here.
UPDATE runs SET parent = (SELECT family.key FROM runs AS family WHERE family.id = runs.parent_id) WHERE parent = -1;

-- name: wake_waiting
-- Two houses became one: whoever waits for an event that is queued begins to wait anew, and is given it.
UPDATE runs SET owner = NULL, epoch = epoch + 1, due = $1 WHERE ended IS NULL AND status = 'suspended' AND key IN (
    SELECT waiters.run FROM waiters JOIN event_queues ON event_queues.name = waiters.name AND event_queues.pending > 0);
