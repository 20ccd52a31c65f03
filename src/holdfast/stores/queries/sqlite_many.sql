-- Statements of one group commit that concern more than one run, or people: events, keys, dead letters, operators.

-- name: tombstone
-- Whether an id was a run's that is gone.
SELECT id, workflow, digest, expires FROM tombstones WHERE id = ?;

-- name: tombstone_json
-- The same of many.
SELECT id, workflow, digest, expires FROM tombstones WHERE id IN (SELECT value ->> 0 FROM jsonb_each(jsonb(?)));

-- name: run_by_unique
-- The open run that has a unique key.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE workflow = ? AND unique_key = ? AND ended IS NULL;

-- name: following
-- Open children that are cancelled with their parent.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE parent = ? AND follows = 1 AND ended IS NULL ORDER BY key;

-- name: insert_attributes
-- Searchable attributes of runs.
INSERT OR REPLACE INTO attributes (name, value, run) VALUES (?, ?, ?);

-- name: insert_attributes_json
-- The same of many.
INSERT OR REPLACE INTO attributes (name, value, run)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM jsonb_each(jsonb(?));

-- name: delete_attribute
-- One attribute of a run, whatever its value.
DELETE FROM attributes WHERE run = ?1 AND name = ?2;

-- name: remember_message
-- Note that a message id was taken; changes nothing if it was before. Run 0: an event.
INSERT OR IGNORE INTO message_ids (run, id, at) VALUES (?, ?, ?);

-- name: known_message
-- Whether a message id was taken before.
SELECT 1 FROM message_ids WHERE run = ? AND id = ?;

-- name: oldest_unread
-- The number of the oldest unread row of an inbox.
SELECT min(n) FROM inbox WHERE run = ?;

-- name: count_unread
-- How many messages of a name a run has not read.
SELECT count(*) FROM inbox WHERE run = ? AND name = ? AND kind = 'message';

-- name: inbox_row
-- One row of an inbox.
SELECT n, kind, name, id, payload, at FROM inbox WHERE run = ? AND n = ?;

-- name: insert_replies
-- Answers to requests; the first one stays.
INSERT OR IGNORE INTO replies (message, run, payload, at) VALUES (?, ?, ?, ?);

-- name: pending_events
-- How many events wait under a name.
SELECT pending FROM event_queues WHERE name = ?;

-- name: count_event
-- One more event under a name (?2 = 1), or some fewer.
INSERT INTO event_queues (name, pending) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET pending = max(0, pending + ?2);

-- name: insert_event
-- An event that waits.
INSERT INTO events (name, id, payload, at) VALUES (?, ?, ?, ?) RETURNING n;

-- name: queued_event
-- The oldest event under a name that is not older than ?2 and comes after ?3.
SELECT n, id, payload, at FROM events WHERE name = ?1 AND n > ?3 AND at >= ?2 ORDER BY n LIMIT 1;

-- name: young_event
-- The oldest event under a name that is not older than ?2, without looking at those that are.
SELECT n, id, payload, at FROM events WHERE name = ?1 AND at >= ?2 ORDER BY at, n LIMIT 1;

-- name: delete_event
-- An event that was taken.
DELETE FROM events WHERE n = ?;

-- name: drop_expired
-- Events under a name that are too old.
DELETE FROM events WHERE name = ? AND at < ?;

-- name: first_waiter
-- Who has waited longest for a name.
SELECT run, location FROM waiters WHERE name = ? ORDER BY since, run LIMIT 1;

-- name: all_waiters
-- Everybody who waits for a name, longest first.
SELECT run, location FROM waiters WHERE name = ? ORDER BY since, run;

-- name: insert_waiters
-- Receives that wait.
INSERT OR IGNORE INTO waiters (run, location, name, since) VALUES (?, ?, ?, ?);

-- name: insert_waiters_json
-- The same, many.
INSERT OR IGNORE INTO waiters (run, location, name, since)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM jsonb_each(jsonb(?));

-- name: delete_waiters
-- A receive that waits no more.
DELETE FROM waiters WHERE run = ? AND location = ?;

-- name: delete_waiters_json
-- The same, many.
DELETE FROM waiters WHERE (run, location) IN (SELECT value ->> 0, value ->> 1 FROM jsonb_each(jsonb(?)));

-- name: cursor
-- The last event under a name that a run was given a copy of.
SELECT n FROM cursors WHERE run = ? AND name = ?;

-- name: put_cursors
-- Move such marks.
INSERT OR REPLACE INTO cursors (run, name, n) VALUES (?, ?, ?);

-- name: put_cursors_json
-- Move many.
INSERT OR REPLACE INTO cursors (run, name, n) SELECT value ->> 0, value ->> 1, value ->> 2 FROM jsonb_each(jsonb(?));

-- name: forget_waiters
-- Everything a run waits for.
DELETE FROM waiters WHERE run = ?;

-- name: forget_waiters_json
-- Everything many runs wait for.
DELETE FROM waiters WHERE run IN (SELECT value ->> 0 FROM jsonb_each(jsonb(?)));

-- name: forget_beats
-- When the steps of a run last reported progress.
DELETE FROM heartbeats WHERE run = ?;

-- name: forget_beats_json
-- The same of many runs.
DELETE FROM heartbeats WHERE run IN (SELECT value ->> 0 FROM jsonb_each(jsonb(?)));

-- name: put_beat
-- A step reported progress.
INSERT OR REPLACE INTO heartbeats (run, location, at, detail) VALUES (?, ?, ?, ?);

-- name: get_key
-- An idempotency key.
SELECT digest, run, location, result, expires, waiting FROM keys WHERE activity = ? AND key = ?;

-- name: put_key
-- Take a key, or leave a result under it.
INSERT OR REPLACE INTO keys (activity, key, digest, run, location, result, expires, waiting)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_key
-- Give a key up.
DELETE FROM keys WHERE activity = ? AND key = ?;

-- name: keys_held
-- The keys a run holds.
SELECT activity, key FROM keys WHERE run = ? AND result IS NULL;

-- name: forget_results
-- What a run left under its keys.
DELETE FROM keys WHERE run = ? AND result IS NOT NULL;

-- name: wait_for_key
-- A step waits for a key.
INSERT OR IGNORE INTO key_waiters (activity, key, run, location) VALUES (?, ?, ?, ?);

-- name: key_waiters
-- Who waits for a key.
SELECT run, location FROM key_waiters WHERE activity = ? AND key = ? ORDER BY run, location;

-- name: delete_key_waiters
-- Nobody waits for a key any more.
DELETE FROM key_waiters WHERE activity = ? AND key = ?;

-- name: forget_key_waiters
-- The keys a run waits for.
DELETE FROM key_waiters WHERE run = ?;

-- name: archive_entries
-- Keep what is cut away.
INSERT OR REPLACE INTO archive (run, reopens, seq, location, kind, at, data)
SELECT run, ?2, seq, location, kind, at, data FROM entries WHERE run = ?1 AND seq >= ?3;

-- name: cut_keys
-- What steps that are cut away left under their idempotency keys: they shall run again.
DELETE FROM keys WHERE run = ?1 AND location IN (SELECT location FROM entries WHERE run = ?1 AND seq >= ?2);

-- name: set_version
-- Which version of its workflow a run is of, that was started without one.
UPDATE runs SET version = ?2 WHERE key = ?1 AND version = '';

-- name: cut_entries
-- Cut it away.
DELETE FROM entries WHERE run = ? AND seq >= ?;

-- name: delete_results
-- The output or error of a run that goes on.
DELETE FROM results WHERE run = ?;

-- name: insert_work_letters
-- Work given up on, with the input of its run.
INSERT OR REPLACE INTO dead_letters (id, kind, run, workflow, step, name, attempts, error, payload, target_status, sent, at,
                                     acknowledged, outcome)
SELECT ?1, 'work', ?2, ?3, ?4, '', ?5, ?6, input, '', NULL, ?7, NULL, '' FROM inputs WHERE run = ?8;

-- name: insert_event_letters
-- An event or message that could not be delivered.
INSERT OR REPLACE INTO dead_letters (id, kind, run, workflow, step, name, attempts, error, payload, target_status, sent, at,
                                     acknowledged, outcome)
VALUES (?1, 'event', ?2, ?3, '', ?4, 0, NULL, ?5, ?6, ?7, ?8, NULL, '');

-- name: settle_letters
-- What became of replaying the letters of a run.
UPDATE dead_letters SET outcome = ?2 WHERE run = ?1 AND kind = 'work' AND outcome = 'replayed';

-- name: replay_letters
-- The run goes on: its letters are being dealt with.
UPDATE dead_letters SET outcome = 'replayed', acknowledged = coalesce(acknowledged, ?2)
WHERE run = ?1 AND kind = 'work' AND outcome = '';

-- name: get_letter
-- One letter that has not been replayed.
SELECT kind, run, name, payload, outcome FROM dead_letters WHERE id = ?;

-- name: close_letter
-- A letter was dealt with.
UPDATE dead_letters SET outcome = ?2, acknowledged = coalesce(acknowledged, ?3) WHERE id = ?1;

-- name: acknowledge_letter
-- Somebody has seen it.
UPDATE dead_letters SET acknowledged = ?2 WHERE id = ?1 AND acknowledged IS NULL;

-- name: delete_letter
-- Forget it.
DELETE FROM dead_letters WHERE id = ?;

-- name: last_audit
-- The end of the chain.
SELECT n, hash FROM audit ORDER BY n DESC LIMIT 1;

-- name: insert_audit
-- What somebody did.
INSERT INTO audit (n, at, actor, action, target, detail, previous, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_evidence
-- The end of a run's chain.
SELECT n, hash FROM evidence WHERE run = ? ORDER BY n DESC LIMIT 1;

-- name: insert_evidence
-- What a run wants on record.
INSERT INTO evidence (run, n, id, kind, data, at, previous, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: get_schedule
-- A schedule.
SELECT next, paused, last_run FROM schedules WHERE id = ?;

-- name: put_schedule
-- Create a schedule or change it.
INSERT INTO schedules (id, workflow, spec, input, next, paused, last_run, created, updated)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL, ?7, ?7)
ON CONFLICT (id) DO UPDATE SET workflow = ?2, spec = ?3, input = ?4, next = ?5, updated = ?7;

-- name: pause_schedule
-- Let a schedule start nothing, or go on.
UPDATE schedules SET paused = ?2, next = ?3, updated = ?4 WHERE id = ?1;

-- name: delete_schedule
-- Forget a schedule.
DELETE FROM schedules WHERE id = ?;

-- name: tick_schedule
-- A tick was dealt with.
UPDATE schedules SET next = ?2, last_run = ?3, updated = ?4 WHERE id = ?1;

-- name: old_runs
-- Runs of a terminal status that ended before an instant, oldest first.
SELECT key, id FROM runs WHERE ended IS NOT NULL AND status = ? AND ended < ? ORDER BY ended LIMIT ?;

-- name: bury
-- Remember the ids of runs that go.
INSERT OR REPLACE INTO tombstones (id, workflow, digest, expires)
SELECT id, workflow, digest, ?2 FROM runs WHERE key IN (SELECT value FROM json_each(?1));

-- name: purge_runs
-- Runs that go, from every table that knows them.
DELETE FROM runs WHERE key IN (SELECT value FROM json_each(?1));

-- name: purge_inputs
-- Their inputs.
DELETE FROM inputs WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_results
-- Their results.
DELETE FROM results WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_entries
-- Their history.
DELETE FROM entries WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_archive
-- What was cut away of it.
DELETE FROM archive WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_attributes
-- Their attributes.
DELETE FROM attributes WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_message_ids
-- The ids of their messages.
DELETE FROM message_ids WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_replies
-- Their answers.
DELETE FROM replies WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_inbox
-- What they have not read.
DELETE FROM inbox WHERE run IN (SELECT value FROM json_each(?1));

-- name: purge_cursors
-- Which events they have seen.
DELETE FROM cursors WHERE run IN (SELECT value FROM json_each(?1));

-- name: old_letters
-- Dead letters of a kind (?4 = 1: only those somebody has seen) before an instant.
SELECT id FROM dead_letters WHERE kind = ?1 AND at < ?2 AND (NOT ?4 OR acknowledged IS NOT NULL) ORDER BY id LIMIT ?3;

-- name: old_events
-- Events that waited since before an instant.
SELECT n, name, id, payload, at FROM events WHERE at < ? ORDER BY at LIMIT ?;

-- name: purge_keys
-- Results under idempotency keys that have expired.
DELETE FROM keys WHERE result IS NOT NULL AND (activity, key) IN (
    SELECT activity, key FROM keys WHERE result IS NOT NULL AND expires < ? LIMIT ?);

-- name: purge_tombstones
-- Ids that may be used again.
DELETE FROM tombstones WHERE id IN (SELECT id FROM tombstones WHERE expires < ? LIMIT ?);

-- name: purge_event_ids
-- Ids of events published long ago.
DELETE FROM message_ids WHERE run = 0 AND id IN (SELECT id FROM message_ids WHERE run = 0 AND at < ? LIMIT ?);
