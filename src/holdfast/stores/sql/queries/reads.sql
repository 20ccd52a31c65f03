-- Statements that only look, for every database.

-- name: get_run
-- One run with its payloads.
SELECT {run_row} FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE runs.id = $1;

-- name: read_standings
-- rows: id text
-- Where runs stand, with what came of those that have ended.
SELECT runs.id, runs.status, results.output, results.error
FROM {rows} AS wanted {join} runs ON runs.id = wanted.id LEFT JOIN results ON results.run = runs.key;

-- name: list_runs
-- A page of runs, newest first. The filter is put in place of {filter}.
SELECT {run_row} FROM runs JOIN inputs ON inputs.run = runs.key LEFT JOIN results ON results.run = runs.key
WHERE {filter} ORDER BY runs.key DESC LIMIT $1;

-- name: list_tagged_runs
-- The same of runs with an attribute, in the order of its index: it may be that of few runs, or of almost all.
SELECT {run_row} FROM attributes AS tagged {join} runs ON runs.key = tagged.run JOIN inputs ON inputs.run = runs.key
LEFT JOIN results ON results.run = runs.key
WHERE tagged.name = $2 AND tagged.value = $3 AND {filter} ORDER BY tagged.run DESC LIMIT $1;

-- name: read_entries
-- The facts of one run.
SELECT {entry} FROM entries WHERE run = $1 ORDER BY seq;

-- name: read_many_entries
-- rows: run int
-- The facts of many runs.
SELECT entries.run, {entry}
FROM {rows} AS wanted {join} entries ON entries.run = wanted.run;

-- name: inbox_numbers
-- rows: key int
-- The inbox numbers of many runs.
SELECT runs.key, runs.inbox FROM {rows} AS wanted {join} runs ON runs.key = wanted.key;

-- name: read_tasks
-- rows: run int
-- Attempts of many runs that wait in a queue or were taken from one.
SELECT tasks.run, tasks.location, tasks.attempt FROM {rows} AS wanted {join} tasks ON tasks.run = wanted.run;

-- name: read_archive
-- Facts of a run that were cut away when it was reopened.
SELECT {archived_entry} FROM archive WHERE run = $1 ORDER BY reopens, seq;

-- name: list_letters
-- A page of dead letters, newest first. The filter is put in place of {filter}.
SELECT {letter}
FROM dead_letters WHERE {filter} ORDER BY id DESC LIMIT $1;

-- name: read_audit
-- What was done to one target, after a number.
SELECT {audit_row} FROM audit
WHERE n > $2 AND target = $1 ORDER BY n LIMIT $3;

-- name: read_all_audit
-- The same of every target.
SELECT {audit_row} FROM audit WHERE n > $1 ORDER BY n LIMIT $2;

-- name: read_evidence
-- The audit trail of a run, after a number.
SELECT {evidence_row} FROM evidence WHERE run = $1 AND n > $2 ORDER BY n LIMIT $3;

-- name: read_schedules
-- Every schedule.
SELECT {schedule} FROM schedules ORDER BY id;

-- name: read_due_schedules
-- Schedules with a tick at or before an instant, earliest first.
SELECT {schedule} FROM schedules
WHERE next <= $1 AND next IS NOT NULL AND paused = 0 ORDER BY next;

-- name: read_replies
-- rows: message text
-- Answers to requests.
SELECT replies.message, replies.payload FROM {rows} AS wanted {join} replies ON replies.message = wanted.message;

-- name: read_events
-- The events that wait under a name, after a number.
SELECT n, name, id, payload, at FROM events WHERE name = $1 AND n > $2 ORDER BY n LIMIT $3;

-- name: read_all_events
-- The oldest events that wait, under any name.
SELECT n, name, id, payload, at FROM events ORDER BY at, name, n LIMIT $1;

-- name: read_beats
-- When the steps of a run last reported progress.
SELECT location, at, detail FROM heartbeats WHERE run = $1;

-- name: count_runs
-- How many runs there are of each status.
SELECT status, count(*) FROM runs GROUP BY status;

-- name: count_letters
-- How many dead letters there are of each kind and outcome.
SELECT kind, outcome, acknowledged IS NOT NULL, count(*) FROM dead_letters
GROUP BY kind, outcome, acknowledged IS NOT NULL;

-- name: count_events
-- How many events wait under each name.
SELECT name, pending FROM event_queues WHERE pending > 0;

-- name: held
-- Runs a worker owns.
SELECT key, epoch, status FROM runs WHERE ended IS NULL AND owner = $1;

-- name: read_pauses
-- Workflows and queues of which nothing begins.
SELECT kind, name, since FROM pauses ORDER BY kind, name;

-- name: read_lanes
-- How many runs wait in lanes and hold places, and since when the first waits; where most wait first.
SELECT workflow, lane, sum(CASE WHEN held = 0 THEN 1 ELSE 0 END) AS waiting, sum(CASE WHEN held = 1 THEN 1 ELSE 0 END),
    min(CASE WHEN held = 0 THEN since END)
FROM run_places GROUP BY workflow, lane ORDER BY waiting DESC, workflow, lane LIMIT $1;
