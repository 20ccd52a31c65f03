-- Statements that only look.

-- name: get_run
-- One run with its payloads.
SELECT runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, input, output,
       error, parent_id, created, updated, ended
FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE runs.id = ?;

-- name: list_runs
-- A page of runs, newest first. The filter is put in place of {filter}.
SELECT runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, input, output,
       error, parent_id, created, updated, ended
FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE {filter} ORDER BY runs.key DESC LIMIT :limit;

-- name: read_entries
-- The facts of one run.
SELECT location, seq, kind, at, data FROM entries WHERE run = ? ORDER BY seq;

-- name: read_many_entries
-- The facts of many runs.
SELECT entries.run, entries.location, entries.seq, entries.kind, entries.at, entries.data
FROM json_each(?) AS wanted CROSS JOIN entries ON entries.run = wanted.value;

-- name: read_inbox
-- Unread rows of one inbox.
SELECT n, kind, name, id, payload, at FROM inbox WHERE run = ? AND n > ? ORDER BY n;

-- name: read_many_inboxes
-- Unread rows of many inboxes.
SELECT inbox.run, inbox.n, inbox.kind, inbox.name, inbox.id, inbox.payload, inbox.at
FROM json_each(?) AS wanted CROSS JOIN inbox ON inbox.run = wanted.value ORDER BY inbox.run, inbox.n;

-- name: inbox_numbers
-- The inbox numbers of many runs.
SELECT key, inbox FROM runs WHERE key IN (SELECT value FROM json_each(?));
