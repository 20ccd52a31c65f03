-- Statements that only look.

-- name: get_run
-- One run with its payloads.
SELECT runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, input, output,
       error, parent_id, created, updated, ended, begins, deadline, priority, unique_key, actor, tenant, reopens,
       compensation,
       (SELECT json_group_object(name, json(value)) FROM attributes WHERE attributes.run = runs.key) AS attributes
FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE runs.id = ?;

-- name: list_runs
-- A page of runs, newest first. The filter is put in place of {filter}.
SELECT runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, input, output,
       error, parent_id, created, updated, ended, begins, deadline, priority, unique_key, actor, tenant, reopens,
       compensation,
       (SELECT json_group_object(name, json(value)) FROM attributes WHERE attributes.run = runs.key) AS attributes
FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE {filter} ORDER BY runs.key DESC LIMIT :limit;

-- name: list_tagged_runs
-- The same of runs with an attribute, in the order of its index: it may be that of few runs, or of almost all.
SELECT runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, input, output,
       error, parent_id, created, updated, ended, begins, deadline, priority, unique_key, actor, tenant, reopens,
       compensation,
       (SELECT json_group_object(name, json(value)) FROM attributes WHERE attributes.run = runs.key) AS attributes
FROM attributes AS tagged CROSS JOIN runs ON runs.key = tagged.run JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE tagged.name = :name0 AND tagged.value = :value0 AND {filter} ORDER BY tagged.run DESC LIMIT :limit;

-- name: read_entries
-- The facts of one run.
SELECT location, seq, kind, at, data FROM entries WHERE run = ? ORDER BY seq;

-- name: read_many_entries
-- The facts of many runs.
SELECT entries.run, entries.location, entries.seq, entries.kind, entries.at, entries.data
FROM json_each(?) AS wanted CROSS JOIN entries ON entries.run = wanted.value;

-- name: read_many_inboxes
-- Unread rows of many inboxes.
SELECT inbox.run, inbox.n, inbox.kind, inbox.name, inbox.id, inbox.payload, inbox.at
FROM json_each(?) AS wanted CROSS JOIN inbox ON inbox.run = wanted.value ORDER BY inbox.run, inbox.n;

-- name: inbox_numbers
-- The inbox numbers of many runs.
SELECT key, inbox FROM runs WHERE key IN (SELECT value FROM json_each(?));

-- name: read_archive
-- Facts of a run that were cut away when it was reopened.
SELECT location, seq, kind, at, data FROM archive WHERE run = ? ORDER BY reopens, seq;

-- name: list_letters
-- A page of dead letters, newest first. The filter is put in place of {filter}.
SELECT id, kind, run, workflow, step, name, attempts, error, payload, target_status, sent, at, acknowledged, outcome
FROM dead_letters WHERE {filter} ORDER BY id DESC LIMIT :limit;

-- name: read_audit
-- What was done, to one target or (?1 is null) at all, after a number.
SELECT n, at, actor, action, target, detail, previous, hash FROM audit
WHERE n > ?2 AND target = ?1 ORDER BY n LIMIT ?3;

-- name: read_all_audit
-- The same of every target.
SELECT n, at, actor, action, target, detail, previous, hash FROM audit WHERE n > ?1 ORDER BY n LIMIT ?2;

-- name: read_evidence
-- The audit trail of a run, after a number.
SELECT run, n, id, kind, data, at, previous, hash FROM evidence WHERE run = ?1 AND n > ?2 ORDER BY n LIMIT ?3;

-- name: read_schedules
-- Every schedule.
SELECT id, workflow, spec, input, next, paused, last_run, created, updated FROM schedules ORDER BY id;

-- name: read_due_schedules
-- Schedules with a tick at or before an instant, earliest first.
SELECT id, workflow, spec, input, next, paused, last_run, created, updated FROM schedules
WHERE next <= ? AND next IS NOT NULL AND paused = 0 ORDER BY next;

-- name: read_replies
-- Answers to requests.
SELECT message, payload FROM replies WHERE message IN (SELECT value FROM json_each(?));

-- name: read_beats
-- When the steps of a run last reported progress.
SELECT location, at, detail FROM heartbeats WHERE run = ?;

-- name: count_runs
-- How many runs there are of each status.
SELECT status, count(*) FROM runs GROUP BY status;

-- name: count_letters
-- How many dead letters there are of each kind and outcome.
SELECT kind, outcome, acknowledged IS NOT NULL, count(*) FROM dead_letters GROUP BY kind, outcome, acknowledged IS NOT NULL;

-- name: count_events
-- How many events wait under each name.
SELECT name, pending FROM event_queues WHERE pending > 0;
