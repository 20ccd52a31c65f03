-- Statements of one group commit. Each write comes twice: for one row with bound parameters, and (_json) for many rows
-- in one JSON array of arrays, because a constant number of statements is what keeps a busy event loop from being
-- waited for at each of them.

-- name: fence
-- The hot path: whether a turn may be written at all.
SELECT 1 FROM runs WHERE key = ? AND epoch = ? AND ended IS NULL;

-- name: append_one
-- The hot path: one fact of a run that is still ours, as a transaction of its own.
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data)
SELECT ?1, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL);

-- name: append_two
-- The same for two facts: the end of a step and the beginning of the next. (VALUES in a subquery takes three times as long.)
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data)
SELECT ?1, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL)
UNION ALL
SELECT ?1, ?8, ?9, ?10, ?11, ?12 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL);

-- name: run_by_key
-- The mutable part of one run.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE key = ?;

-- name: run_by_key_json
-- The same of many runs.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE key IN (SELECT value ->> 0 FROM jsonb_each(jsonb(?)));

-- name: run_by_id
-- The mutable part of one run, by its public id.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE id = ?;

-- name: run_by_id_json
-- The same of many runs.
SELECT key, id, workflow, status, wait, due, epoch, owner, generation, inbox, claims, lost, digest, parent, fingerprint,
       updated, ended, unique_key, timeout, deadline, reopens, traces, begins
FROM runs WHERE id IN (SELECT value ->> 0 FROM jsonb_each(jsonb(?)));

-- name: unread
-- Inbox rows of a run beyond a number.
SELECT run, n, kind, name, id, payload, at FROM inbox WHERE run = ? AND n > ? ORDER BY n;

-- name: unread_json
-- The same of many runs.
SELECT inbox.run, inbox.n, inbox.kind, inbox.name, inbox.id, inbox.payload, inbox.at
FROM jsonb_each(jsonb(?)) AS wanted
CROSS JOIN inbox ON inbox.run = wanted.value ->> 0 AND inbox.n > wanted.value ->> 1
ORDER BY inbox.run, inbox.n;

-- name: live_worker
-- Whether a worker is announced and not declared dead.
SELECT 1 FROM workers WHERE id = ? AND state = 'live';

-- name: last_key
-- The highest key ever given out.
SELECT seq FROM sqlite_sequence WHERE name = 'runs';

-- name: insert_runs
-- New runs.
INSERT INTO runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, lost, seed,
                  digest, parent, parent_id, parent_location, fingerprint, created, updated, ended, priority, begins,
                  timeout, deadline, unique_key, actor, tenant, follows, reopens, traces)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_runs_json
-- New runs, many.
INSERT INTO runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, lost, seed,
                  digest, parent, parent_id, parent_location, fingerprint, created, updated, ended, priority, begins,
                  timeout, deadline, unique_key, actor, tenant, follows, reopens, traces)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14, value ->> 15,
       value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20, value ->> 21, value ->> 22, value ->> 23,
       value ->> 24, value ->> 25, value ->> 26, value ->> 27, value ->> 28, value ->> 29, value ->> 30, value ->> 31
FROM jsonb_each(jsonb(?));

-- name: update_runs
-- Write back the mutable part of runs.
UPDATE runs SET status = ?2, wait = ?3, due = ?4, owner = ?5, generation = ?6, inbox = ?7, claims = ?8, lost = ?9,
                fingerprint = ?10, updated = ?11, ended = ?12, epoch = ?13, deadline = ?14, reopens = ?15, traces = ?16
WHERE key = ?1;

-- name: update_runs_json
-- Write back the mutable part of many runs.
UPDATE runs SET status = new.value ->> 1, wait = new.value ->> 2, due = new.value ->> 3, owner = new.value ->> 4,
                generation = new.value ->> 5, inbox = new.value ->> 6, claims = new.value ->> 7, lost = new.value ->> 8,
                fingerprint = new.value ->> 9, updated = new.value ->> 10, ended = new.value ->> 11,
                epoch = new.value ->> 12, deadline = new.value ->> 13, reopens = new.value ->> 14,
                traces = new.value ->> 15
FROM jsonb_each(jsonb(?)) AS new WHERE runs.key = new.value ->> 0;

-- name: put_inputs
-- The input of new or renewed runs.
INSERT OR REPLACE INTO inputs (run, input) VALUES (?, ?);

-- name: put_inputs_json
-- The input of many runs.
INSERT OR REPLACE INTO inputs (run, input) SELECT value ->> 0, value ->> 1 FROM jsonb_each(jsonb(?));

-- name: put_results
-- The output or error of runs.
INSERT OR REPLACE INTO results (run, output, error, compensation) VALUES (?, ?, ?, ?);

-- name: put_results_json
-- The output or error of many runs.
INSERT OR REPLACE INTO results (run, output, error, compensation)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM jsonb_each(jsonb(?));

-- name: forget_entries
-- Continue-as-new: the whole history of a run.
DELETE FROM entries WHERE run = ?;

-- name: trim_entries
-- The facts of a range of locations.
DELETE FROM entries WHERE run = ? AND location >= ? AND location < ?;

-- name: insert_entries
-- New facts. A fact already there stays as it is.
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data) VALUES (?, ?, ?, ?, ?, ?);

-- name: insert_entries_json
-- New facts, many.
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM jsonb_each(jsonb(?));

-- name: rewrite_entries
-- A refused send or child start, told in the sender's own fact.
UPDATE entries SET data = ?4 WHERE run = ?1 AND location = ?2 AND seq = ?3;

-- name: consume
-- Inbox rows a turn has taken in.
DELETE FROM inbox WHERE run = ? AND n = ?;

-- name: consume_json
-- Inbox rows many turns have taken in.
DELETE FROM inbox WHERE (run, n) IN (SELECT value ->> 0, value ->> 1 FROM jsonb_each(jsonb(?)));

-- name: insert_inbox
-- Messages, ends of children, requests to cancel.
INSERT INTO inbox (run, n, kind, name, id, payload, at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_inbox_json
-- The same, many.
INSERT INTO inbox (run, n, kind, name, id, payload, at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
FROM jsonb_each(jsonb(?));

-- name: clear_blocked_errors
-- Why blocked runs of a workflow (under another fingerprint), or one run, could not go on.
DELETE FROM results WHERE run IN (
    SELECT key FROM runs WHERE status = 'blocked' AND (
        (workflow = ?1 AND ?3 = '' AND fingerprint <> ?2) OR (?3 <> '' AND id = ?3)));

-- name: unblock
-- Make those runs claimable again. A run blocked as poison has no fingerprint and goes on only when it is named.
UPDATE runs SET status = 'pending', due = ?4, owner = NULL, claims = 0, wait = '', updated = ?4
WHERE status = 'blocked' AND ((workflow = ?1 AND ?3 = '' AND fingerprint <> ?2) OR (?3 <> '' AND id = ?3));
