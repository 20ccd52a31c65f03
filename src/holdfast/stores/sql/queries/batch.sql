-- Statements of one group commit, for every database. `rows` names the columns of what a statement is given, and {rows} stands
-- for them as a table: one row of bound parameters, or many in one JSON parameter, because a constant number of statements is
-- what keeps a busy event loop from being waited for at each of them. Statements without it take $1, $2 ... and run per row.

-- name: run_by_key
-- rows: key int
-- The mutable part of runs.
SELECT {run} FROM {rows} AS wanted {join} runs ON runs.key = wanted.key;

-- name: run_by_id
-- rows: id text
-- The same by their public ids.
SELECT {run} FROM {rows} AS wanted {join} runs ON runs.id = wanted.id;

-- name: unread
-- rows: run int, n int
-- Inbox rows of runs, of each beyond a number.
SELECT inbox.run, {message}
FROM {rows} AS wanted {join} inbox ON inbox.run = wanted.run AND inbox.n > wanted.n
ORDER BY inbox.run, inbox.n;

-- name: fenced_facts
-- rows: run int, epoch int
-- Among runs that no other process changes now: whose facts may not be written.
SELECT new.run, new.epoch FROM {rows} AS new
LEFT JOIN runs ON runs.key = new.run AND runs.epoch = new.epoch AND runs.ended IS NULL WHERE runs.key IS NULL;

-- name: insert_facts
-- rows: run int, epoch int, location text, seq int, kind int, at int, data text
-- Among runs that no other process changes now: the facts of the others.
INSERT INTO entries (run, location, seq, kind, at, data)
SELECT new.run, new.location, new.seq, new.kind, new.at, new.data FROM {rows} AS new
JOIN runs ON runs.key = new.run AND runs.epoch = new.epoch AND runs.ended IS NULL WHERE TRUE ON CONFLICT DO NOTHING;

-- name: live_worker
-- Whether a worker is announced and not declared dead.
SELECT 1 FROM workers WHERE id = $1 AND state = 'live';

-- name: insert_runs
-- rows: runs
-- New runs.
INSERT INTO runs ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE;

-- name: update_runs
-- rows: changes of runs
-- Write back the mutable part of runs.
UPDATE runs SET {run_changes} FROM {rows} AS new WHERE runs.key = new.key;

-- name: update_runs_as_usual
-- rows: usual changes of runs
-- The same of runs that only parked, woke or ended, as nearly all do: half the columns.
UPDATE runs SET {run_usual_changes} FROM {rows} AS new WHERE runs.key = new.key;

-- name: put_inputs
-- rows: run int, input text
-- The input of new or renewed runs.
INSERT INTO inputs ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (run) DO UPDATE SET input = excluded.input;

-- name: put_results
-- rows: results
-- The output or error of runs.
INSERT INTO results ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (run) DO UPDATE SET output = excluded.output, error = excluded.error, compensation = excluded.compensation,
    failed_step = excluded.failed_step;

-- name: put_outputs
-- rows: run int, output text
-- The output of runs that completed.
INSERT INTO results (run, output) SELECT run, output FROM {rows} AS new WHERE TRUE
ON CONFLICT (run) DO UPDATE SET output = excluded.output, error = NULL, compensation = NULL, failed_step = NULL;

-- name: forget_entries
-- rows: run int
-- Continue-as-new: the whole history of a run.
DELETE FROM entries WHERE run IN (SELECT run FROM {rows} AS gone);

-- name: trim_entries
-- The facts of a range of locations.
DELETE FROM entries WHERE run = $1 AND location >= $2 AND location < $3;

-- name: insert_entries
-- rows: entries
-- New facts. A fact already there stays as it is.
INSERT INTO entries ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE ON CONFLICT DO NOTHING;

-- name: rewrite_entries
-- A refused send or child start, told in the sender's own fact.
UPDATE entries SET data = $4 WHERE run = $1 AND location = $2 AND seq = $3;

-- name: consume
-- rows: run int, n int
-- Inbox rows that turns have taken in.
DELETE FROM inbox WHERE (run, n) IN (SELECT run, n FROM {rows} AS read);

-- name: insert_inbox
-- rows: inbox
-- Messages, ends of children, requests to cancel.
INSERT INTO inbox ({columns}) SELECT {columns} FROM {rows} AS new;

-- name: clear_blocked_errors
-- Why blocked runs of a workflow (under another fingerprint), or one run, could not go on.
DELETE FROM results WHERE run IN (
    SELECT key FROM runs WHERE status = 'blocked' AND (
        (workflow = $1 AND $3 = '' AND fingerprint <> $2) OR ($3 <> '' AND id = $3)));

-- name: unblock
-- Make those runs claimable again. A run blocked as poison has no fingerprint and goes on only when it is named.
UPDATE runs SET status = 'pending', due = $4, owner = NULL, claims = 0, wait = '', updated = $4
WHERE status = 'blocked' AND ((workflow = $1 AND $3 = '' AND fingerprint <> $2) OR ($3 <> '' AND id = $3));
