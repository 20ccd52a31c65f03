-- Statements of one group commit that concern more than one run, or people: events, keys, dead letters, operators.

-- name: tombstone
-- rows: id text
-- Whether ids were those of runs that are gone.
SELECT tombstones.id, workflow, digest, expires FROM {rows} AS wanted {join} tombstones ON tombstones.id = wanted.id;

-- name: run_by_unique
-- The open run that has a unique key: one whose end is decided has none any more.
SELECT {run} FROM runs WHERE workflow = $1 AND unique_key = $2 AND ended IS NULL
AND (conclusion IS NULL OR conclusion = 'open');

-- name: following
-- Open children that are cancelled with their parent.
SELECT {run} FROM runs WHERE parent_key = $1 AND cancel_with_parent = 1 AND ended IS NULL ORDER BY key;

-- name: insert_attributes
-- rows: name text, value text, run int
-- Searchable attributes of runs.
INSERT INTO attributes ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: delete_attribute
-- One attribute of a run, whatever its value.
DELETE FROM attributes WHERE run = $1 AND name = $2;

-- name: remember_message
-- Note that a message id was taken; changes nothing if it was before. Run 0: an event.
INSERT INTO message_ids (run, id, at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: known_message
-- Whether a message id was taken before.
SELECT 1 FROM message_ids WHERE run = $1 AND id = $2;

-- name: oldest_unread
-- The number of the oldest unread row of an inbox.
SELECT min(n) FROM inbox WHERE run = $1;

-- name: count_unread
-- How many messages of a name a run has not read.
SELECT count(*) FROM inbox WHERE run = $1 AND name = $2 AND kind = 'message';

-- name: inbox_row
-- One row of an inbox.
SELECT {message} FROM inbox WHERE run = $1 AND n = $2;

-- name: insert_replies
-- Answers to requests; the first one stays.
INSERT INTO replies (message, run, payload, at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: pending_events
-- How many events wait under a name.
SELECT pending FROM event_queues WHERE name = $1;

-- name: pending_of
-- rows: name text
-- The same of many names.
SELECT event_queues.name, event_queues.pending FROM {rows} AS wanted
{join} event_queues ON event_queues.name = wanted.name;

-- name: put_takers
-- rows: name text, run int, at int
-- Which runs were given the last events of names.
INSERT INTO event_takers (name, run, at) SELECT name, run, at FROM {rows} AS new WHERE TRUE
ON CONFLICT (name) DO UPDATE SET run = excluded.run, at = excluded.at;

-- name: count_event
-- One more event under a name ($2 = 1), or some fewer.
INSERT INTO event_queues (name, pending) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET pending = {greatest}(0, event_queues.pending + $2);

-- name: queued_event
-- The oldest event under a name that is not older than $2 and comes after $3.
SELECT n, id, payload, at FROM events WHERE name = $1 AND n > $3 AND at >= $2 ORDER BY n LIMIT 1;

-- name: oldest_event
-- The oldest event under a name that is not older than $2, without looking at those that are.
SELECT n, id, payload, at FROM events WHERE name = $1 AND at >= $2 ORDER BY at, n LIMIT 1;

-- name: delete_event
-- An event that was taken.
DELETE FROM events WHERE name = $1 AND n = $2;

-- name: drop_expired
-- Events under a name that are too old.
DELETE FROM events WHERE name = $1 AND at < $2;

-- name: first_waiter
-- Who has waited longest for a name.
SELECT run, location FROM event_waiters WHERE name = $1 ORDER BY since, run, location LIMIT 1;

-- name: all_waiters
-- Receives that wait for a name, longest first.
SELECT run, location FROM event_waiters WHERE name = $1 ORDER BY since, run, location;

-- name: insert_waiters
-- rows: run int, location text, name text, since int
-- Receives that wait.
INSERT INTO event_waiters ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: delete_waiters
-- rows: run int, location text
-- Receives that wait no more.
DELETE FROM event_waiters WHERE (run, location) IN (SELECT run, location FROM {rows} AS gone);

-- name: cursor
-- The last event under a name that a run was given a copy of.
SELECT n FROM event_cursors WHERE run = $1 AND name = $2;

-- name: put_cursors
-- rows: run int, name text, n int
-- Move such marks.
INSERT INTO event_cursors ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (run, name) DO UPDATE SET n = excluded.n;

-- name: forget_waiters
-- rows: run int
-- Everything that runs wait for.
DELETE FROM event_waiters WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: forget_beats
-- rows: run int
-- When the steps of runs last reported progress.
DELETE FROM heartbeats WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: put_beat
-- A step reported progress.
INSERT INTO heartbeats (run, location, at, detail) VALUES ($1, $2, $3, $4)
ON CONFLICT (run, location) DO UPDATE SET at = excluded.at, detail = excluded.detail;

-- name: put_task
-- An attempt waits for a worker.
INSERT INTO tasks (run, location, attempt, queue, activity, payload, priority, at, owner, limit_key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, NULL, $9)
ON CONFLICT (run, location) DO UPDATE SET attempt = excluded.attempt, queue = excluded.queue,
    activity = excluded.activity, payload = excluded.payload, priority = excluded.priority, at = excluded.at,
    owner = NULL, limit_key = excluded.limit_key;

-- name: get_task
-- Which attempt a task is, and who has it.
SELECT attempt, owner FROM tasks WHERE run = $1 AND location = $2;

-- name: delete_tasks
-- rows: run int, location text
-- Attempts that ended or are not wanted any more.
DELETE FROM tasks WHERE (run, location) IN (SELECT run, location FROM {rows} AS gone);

-- name: forget_tasks
-- rows: run int
-- All that runs have waiting.
DELETE FROM tasks WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: tasks_of
-- What a worker has taken.
SELECT run, location, attempt FROM tasks WHERE owner = $1 ORDER BY run, location;

-- name: get_key
-- An idempotency key.
SELECT digest, run, location, result, expires, waiting FROM idempotency_keys WHERE activity = $1 AND key = $2;

-- name: put_key
-- Take a key, or leave a result under it.
INSERT INTO idempotency_keys (activity, key, digest, run, location, result, expires, waiting)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (activity, key) DO UPDATE SET digest = excluded.digest, run = excluded.run, location = excluded.location,
    result = excluded.result, expires = excluded.expires, waiting = excluded.waiting;

-- name: delete_key
-- Give a key up.
DELETE FROM idempotency_keys WHERE activity = $1 AND key = $2;

-- name: keys_held
-- rows: run int
-- The keys that runs hold.
SELECT idempotency_keys.run, idempotency_keys.activity, idempotency_keys.key FROM {rows} AS wanted {join} idempotency_keys ON idempotency_keys.run = wanted.run
WHERE idempotency_keys.result IS NULL;

-- name: forget_results
-- What a run left under its keys.
DELETE FROM idempotency_keys WHERE run = $1 AND result IS NOT NULL;

-- name: wait_for_key
-- A step waits for a key.
INSERT INTO idempotency_waiters (activity, key, run, location) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: key_waiters
-- Who waits for a key.
SELECT run, location FROM idempotency_waiters WHERE activity = $1 AND key = $2 ORDER BY run, location;

-- name: delete_key_waiters
-- No step waits for a key any more.
DELETE FROM idempotency_waiters WHERE activity = $1 AND key = $2;

-- name: forget_key_waiters
-- The keys a run waits for.
DELETE FROM idempotency_waiters WHERE run = $1;

-- name: archive_entries
-- Keep what is cut away.
INSERT INTO archive (run, reopens, seq, location, kind, at, data)
SELECT run, CAST($2 AS BIGINT), seq, location, kind, at, data FROM entries WHERE run = $1 AND seq >= $3
ON CONFLICT (run, reopens, seq, location) DO UPDATE SET kind = excluded.kind, at = excluded.at, data = excluded.data;

-- name: keys_cut
-- The idempotency keys of steps that are cut away: they shall run again.
SELECT activity, key, location FROM idempotency_keys
WHERE run = $1 AND location IN (SELECT location FROM entries WHERE run = $1 AND seq >= $2);

-- name: cut_entries
-- Cut it away.
DELETE FROM entries WHERE run = $1 AND seq >= $2;

-- name: delete_results
-- The output or error of a run that goes on.
DELETE FROM results WHERE run = $1;

-- name: insert_work_letters
-- rows: id text, run text, workflow text, step text, attempts int, error text, at int, key int, failures int, arguments text, compensation int, idempotent int
-- Work given up on, with the input of its run.
INSERT INTO dead_letters (id, kind, run, workflow, step, name, attempts, error, payload, target_status, sent, at,
                          acknowledged, outcome, failures, arguments, compensation, idempotent)
SELECT new.id, 'work', new.run, new.workflow, new.step, '', new.attempts, new.error, inputs.input, '', NULL, new.at,
       NULL, '', new.failures, new.arguments, new.compensation, new.idempotent
FROM {rows} AS new {join} inputs ON inputs.run = new.key WHERE TRUE ON CONFLICT DO NOTHING;

-- name: insert_event_letters
-- rows: id text, run text, workflow text, name text, payload text, target_status text, sent int, at int
-- An event or message that could not be delivered.
INSERT INTO dead_letters (id, kind, run, workflow, step, name, attempts, error, payload, target_status, sent, at,
                          acknowledged, outcome)
SELECT id, 'event', run, workflow, '', name, 0, NULL, payload, target_status, sent, at, NULL, '' FROM {rows} AS new
WHERE TRUE ON CONFLICT DO NOTHING;

-- name: settle_letters
-- What became of replaying the letters of a run.
UPDATE dead_letters SET outcome = $2 WHERE run = $1 AND kind = 'work' AND outcome = 'replayed';

-- name: settle_compensations
-- All was undone that could be: a compensation that was replayed and has no other letter has completed.
UPDATE dead_letters SET outcome = 'completed'
WHERE run = $1 AND kind = 'work' AND outcome = 'replayed' AND compensation = 1 AND NOT EXISTS (
    SELECT 1 FROM dead_letters AS newer
    WHERE newer.run = $1 AND newer.step = dead_letters.step AND newer.compensation = 1 AND newer.outcome = '');

-- name: replay_letters
-- The run goes on: its letters ($3 = 1: only those of its compensations) are being dealt with.
UPDATE dead_letters SET outcome = 'replayed', acknowledged = coalesce(acknowledged, $2)
WHERE run = $1 AND kind = 'work' AND outcome = '' AND ($3 = 0 OR compensation = 1);

-- name: keep_letters
-- Letters of a step whose failure stays as it is were not dealt with by that.
UPDATE dead_letters SET outcome = '', acknowledged = CASE WHEN acknowledged = $3 THEN NULL ELSE acknowledged END
WHERE run = $1 AND step = $2 AND kind = 'work' AND outcome = 'replayed';

-- name: get_letter
-- One letter that has not been replayed.
SELECT kind, run, name, payload, outcome FROM dead_letters WHERE id = $1;

-- name: close_letter
-- A letter was dealt with.
UPDATE dead_letters SET outcome = $2, acknowledged = coalesce(acknowledged, $3) WHERE id = $1;

-- name: acknowledge_letter
-- An operator has seen it.
UPDATE dead_letters SET acknowledged = $2 WHERE id = $1 AND acknowledged IS NULL;

-- name: delete_letter
-- Forget it.
DELETE FROM dead_letters WHERE id = $1;

-- name: purge_evidence
-- All that a run put on record; an operator asked for it.
DELETE FROM evidence WHERE run = $1;

-- name: last_audit
-- The end of the chain.
SELECT n, hash FROM audit ORDER BY n DESC LIMIT 1;

-- name: insert_audit
-- rows: audit
-- What was done, and by whom.
INSERT INTO audit ({columns}) SELECT {columns} FROM {rows} AS new;

-- name: last_evidence
-- The end of a run's chain.
SELECT n, hash FROM evidence WHERE run = $1 ORDER BY n DESC LIMIT 1;

-- name: insert_evidence
-- rows: evidence
-- What a run wants on record.
INSERT INTO evidence ({columns}) SELECT {columns} FROM {rows} AS new;

-- name: get_schedule
-- A schedule.
SELECT next, paused, last_run FROM schedules WHERE id = $1;

-- name: put_schedule
-- Create a schedule or change it.
INSERT INTO schedules (id, workflow, spec, input, next, paused, last_run, created, updated)
VALUES ($1, $2, $3, $4, $5, $6, NULL, $7, $7)
ON CONFLICT (id) DO UPDATE SET workflow = excluded.workflow, spec = excluded.spec, input = excluded.input,
    next = excluded.next, updated = excluded.updated;

-- name: pause_schedule
-- Let a schedule start nothing, or go on.
UPDATE schedules SET paused = $2, next = $3, updated = $4 WHERE id = $1;

-- name: delete_schedule
-- Forget a schedule.
DELETE FROM schedules WHERE id = $1;

-- name: tick_schedule
-- A tick was dealt with.
UPDATE schedules SET next = $2, last_run = $3, updated = $4 WHERE id = $1;

-- name: old_runs
-- Runs of a terminal status that ended before an instant, oldest first.
SELECT key, id FROM runs WHERE ended IS NOT NULL AND status = $1 AND ended < $2 ORDER BY ended, key LIMIT $3;

-- name: bury
-- rows: key int, expires int
-- Remember the ids of runs that go.
INSERT INTO tombstones (id, workflow, digest, expires)
SELECT runs.id, runs.workflow, runs.digest, gone.expires FROM {rows} AS gone {join} runs ON runs.key = gone.key WHERE TRUE
ON CONFLICT (id) DO UPDATE SET workflow = excluded.workflow, digest = excluded.digest, expires = excluded.expires;

-- name: purge_runs
-- rows: key int
-- Runs that go, from every table that knows them.
DELETE FROM runs WHERE key IN (SELECT key FROM {rows} AS gone);

-- name: purge_inputs
-- rows: run int
-- Their inputs.
DELETE FROM inputs WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_results
-- rows: run int
-- Their results.
DELETE FROM results WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_archive
-- rows: run int
-- What was cut away of their history.
DELETE FROM archive WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_attributes
-- rows: run int
-- Their attributes.
DELETE FROM attributes WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_message_ids
-- rows: run int
-- The ids of their messages.
DELETE FROM message_ids WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_replies
-- rows: run int
-- Their answers.
DELETE FROM replies WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_inbox
-- rows: run int
-- What they have not read.
DELETE FROM inbox WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_cursors
-- rows: run int
-- Which events they have seen.
DELETE FROM event_cursors WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: purge_takers
-- rows: run int
-- That they were given the last event of a name.
DELETE FROM event_takers WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: old_letters
-- Dead letters of a kind ($4 = 1: only those an operator has seen) before an instant.
SELECT id FROM dead_letters WHERE kind = $1 AND at < $2 AND ($4 = 0 OR acknowledged IS NOT NULL) ORDER BY id LIMIT $3;

-- name: old_events
-- Events that waited since before an instant.
SELECT n, name, id, payload, at FROM events WHERE at < $1 ORDER BY at LIMIT $2;

-- name: purge_keys
-- Results under idempotency keys that have expired.
DELETE FROM idempotency_keys WHERE result IS NOT NULL AND (activity, key) IN (
    SELECT activity, key FROM idempotency_keys WHERE result IS NOT NULL AND expires < $1 ORDER BY expires LIMIT $2);

-- name: purge_tombstones
-- Ids that may be used again.
DELETE FROM tombstones WHERE id IN (SELECT id FROM tombstones WHERE expires < $1 ORDER BY expires, id LIMIT $2);

-- name: purge_event_ids
-- Ids of events published long ago.
DELETE FROM message_ids WHERE run = 0 AND id IN (SELECT id FROM message_ids WHERE run = 0 AND at < $1
                                         ORDER BY at, id LIMIT $2);

-- name: put_pause
-- A workflow or queue of which nothing begins; it is as old as it was.
INSERT INTO pauses (kind, name, since) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: delete_pause
-- The end of that.
DELETE FROM pauses WHERE kind = $1 AND name = $2;
