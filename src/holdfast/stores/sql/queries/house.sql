-- Statements about queues, events, names, the audit trail and dead letters for faces. Names are found by jumping from
-- one to the next in an index, and what there is of each is counted up to a number.

-- name: count_waiting_tasks
-- Attempts that wait, by queue and activity: how many, and since when.
WITH RECURSIVE queues (queue) AS (
    SELECT (SELECT queue FROM tasks WHERE owner IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT tasks.queue FROM tasks WHERE owner IS NULL AND tasks.queue > queues.queue
            ORDER BY tasks.queue LIMIT 1) FROM queues WHERE queues.queue IS NOT NULL
), activities (queue, activity) AS (
    SELECT queues.queue, (SELECT activity FROM tasks WHERE owner IS NULL AND tasks.queue = queues.queue
                          ORDER BY activity LIMIT 1) FROM queues WHERE queues.queue IS NOT NULL
    UNION ALL
    SELECT activities.queue, (SELECT tasks.activity FROM tasks WHERE owner IS NULL AND tasks.queue = activities.queue
                              AND tasks.activity > activities.activity ORDER BY tasks.activity LIMIT 1)
    FROM activities WHERE activities.activity IS NOT NULL
), priorities (queue, activity, priority) AS (
    SELECT activities.queue, activities.activity,
        (SELECT priority FROM tasks WHERE owner IS NULL AND tasks.queue = activities.queue
         AND tasks.activity = activities.activity ORDER BY priority DESC LIMIT 1)
    FROM activities WHERE activities.activity IS NOT NULL
    UNION ALL
    SELECT priorities.queue, priorities.activity,
        (SELECT tasks.priority FROM tasks WHERE owner IS NULL AND tasks.queue = priorities.queue
         AND tasks.activity = priorities.activity AND tasks.priority < priorities.priority
         ORDER BY tasks.priority DESC LIMIT 1)
    FROM priorities WHERE priorities.priority IS NOT NULL
), oldest (queue, activity, at) AS (
    SELECT priorities.queue, priorities.activity,
        min((SELECT at FROM tasks WHERE owner IS NULL AND tasks.queue = priorities.queue
             AND tasks.activity = priorities.activity AND tasks.priority = priorities.priority ORDER BY at LIMIT 1))
    FROM priorities WHERE priorities.priority IS NOT NULL GROUP BY priorities.queue, priorities.activity
)
SELECT oldest.queue, oldest.activity,
    (SELECT count(*) FROM (SELECT 1 FROM tasks WHERE owner IS NULL AND tasks.queue = oldest.queue
                           AND tasks.activity = oldest.activity LIMIT $1) AS counted), oldest.at
FROM oldest ORDER BY oldest.queue, oldest.activity LIMIT $2;

-- name: count_taken_tasks
-- Attempts that workers have, by queue and activity, of the first so many.
SELECT queue, activity, count(*) FROM (SELECT queue, activity FROM tasks WHERE owner > '' LIMIT $1) AS taken
GROUP BY queue, activity ORDER BY queue, activity;

-- name: count_tasks_in_line
-- Attempts that wait in the line of a limit, where no claim sees them: the same, and since when.
SELECT queue, activity, count(*), min(at) FROM (SELECT queue, activity, at FROM tasks WHERE owner = '' LIMIT $1) AS taken
GROUP BY queue, activity ORDER BY queue, activity;

-- name: queued_event_names
-- Names under which events are queued: how many, and since when.
SELECT name, pending, (SELECT events.at FROM events WHERE events.name = event_queues.name ORDER BY events.at LIMIT 1)
FROM event_queues WHERE pending > 0 ORDER BY name LIMIT $1;

-- name: awaited_event_names
-- Names for which receives wait: how many, up to a number, and since when.
WITH RECURSIVE names (name) AS (
    SELECT (SELECT name FROM event_waiters ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT event_waiters.name FROM event_waiters WHERE event_waiters.name > names.name
            ORDER BY event_waiters.name LIMIT 1) FROM names WHERE names.name IS NOT NULL
)
SELECT names.name,
    (SELECT count(*) FROM (SELECT 1 FROM event_waiters WHERE event_waiters.name = names.name LIMIT $1) AS counted),
    (SELECT since FROM event_waiters WHERE event_waiters.name = names.name ORDER BY since LIMIT 1)
FROM names WHERE names.name IS NOT NULL LIMIT $2;

-- name: read_event_waiters
-- Receives that wait for a name, the longest first.
SELECT runs.id, event_waiters.location, event_waiters.since
FROM event_waiters {join} runs ON runs.key = event_waiters.run
WHERE event_waiters.name = $1 ORDER BY event_waiters.since, event_waiters.run, event_waiters.location LIMIT $2;

-- name: workflow_names
-- Workflows that have runs, between two texts.
WITH RECURSIVE names (name) AS (
    SELECT (SELECT workflow FROM runs WHERE workflow >= $1 AND workflow < $2 ORDER BY workflow LIMIT 1)
    UNION ALL
    SELECT (SELECT runs.workflow FROM runs WHERE runs.workflow > names.name AND runs.workflow < $2
            ORDER BY runs.workflow LIMIT 1) FROM names WHERE names.name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT $3;

-- name: attribute_names
-- Names of attributes between two texts.
WITH RECURSIVE names (name) AS (
    SELECT (SELECT name FROM attributes WHERE name >= $1 AND name < $2 ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT attributes.name FROM attributes WHERE attributes.name > names.name AND attributes.name < $2
            ORDER BY attributes.name LIMIT 1) FROM names WHERE names.name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT $3;

-- name: attribute_values
-- Values of an attribute between two texts.
WITH RECURSIVE found (value) AS (
    SELECT (SELECT value FROM attributes WHERE name = $4 AND value >= $1 AND value < $2 ORDER BY value LIMIT 1)
    UNION ALL
    SELECT (SELECT attributes.value FROM attributes WHERE name = $4 AND attributes.value > found.value
            AND attributes.value < $2 ORDER BY attributes.value LIMIT 1) FROM found WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL LIMIT $3;

-- name: count_ended
-- How many runs have ended, by status, in the index of those.
SELECT status, count(*) FROM runs WHERE ended IS NOT NULL AND status IN ('completed', 'failed', 'cancelled', 'moved') GROUP BY status;

-- name: list_acts
-- A page of the audit trail, newest first. The filter is put in place of {filter}.
SELECT {audit_row} FROM audit WHERE {filter} ORDER BY n DESC LIMIT $1;

-- name: group_letters
-- Open dead letters of a kind by their cause, of the newest so many.
SELECT kind, workflow, step, name, error_type, message, count(*), min(at), max(at), max(id) FROM (
    SELECT kind, workflow, step, name, at, id, error_type,
        CASE WHEN error_type LIKE '%StepFailed' THEN message ELSE '' END AS message
    FROM (
        SELECT kind, workflow, step, name, at, id, COALESCE({letter_error_type}, '') AS error_type,
            substr(COALESCE({letter_error_message}, ''), 1, 100) AS message
        FROM dead_letters WHERE kind = $1 AND acknowledged IS NULL AND outcome = '' ORDER BY id DESC LIMIT $2
    ) AS newest
) AS open_letters
GROUP BY kind, workflow, step, name, error_type, message ORDER BY count(*) DESC, max(id) DESC;

-- name: read_imported_blocks
-- What imports brought of a table, in the order of its keys.
SELECT first, last, oldest, newest, ordered, at FROM imported_blocks WHERE what = $1 ORDER BY first;

-- name: insert_imported_block
-- Note what an import brought.
INSERT INTO imported_blocks (what, first, last, oldest, newest, ordered, at) VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: runs_ends
-- The first and the last key.
SELECT (SELECT min(key) FROM runs), (SELECT max(key) FROM runs);

-- name: audit_ends
-- The first and the last number.
SELECT (SELECT min(n) FROM audit), (SELECT max(n) FROM audit);

-- name: runs_around
-- rows: place int, low int, high int
-- The last run below each of some keys and the first at or above it, of those between two keys.
SELECT wanted.place,
    (SELECT key FROM runs WHERE key >= wanted.low AND key < wanted.place ORDER BY key DESC LIMIT 1),
    (SELECT created FROM runs WHERE key >= wanted.low AND key < wanted.place ORDER BY key DESC LIMIT 1),
    (SELECT key FROM runs WHERE key >= wanted.place AND key < wanted.high ORDER BY key LIMIT 1),
    (SELECT created FROM runs WHERE key >= wanted.place AND key < wanted.high ORDER BY key LIMIT 1)
FROM {rows} AS wanted ORDER BY wanted.place;

-- name: audit_around
-- rows: place int, low int, high int
-- The same of the audit trail.
SELECT wanted.place,
    (SELECT n FROM audit WHERE n >= wanted.low AND n < wanted.place ORDER BY n DESC LIMIT 1),
    (SELECT at FROM audit WHERE n >= wanted.low AND n < wanted.place ORDER BY n DESC LIMIT 1),
    (SELECT n FROM audit WHERE n >= wanted.place AND n < wanted.high ORDER BY n LIMIT 1),
    (SELECT at FROM audit WHERE n >= wanted.place AND n < wanted.high ORDER BY n LIMIT 1)
FROM {rows} AS wanted ORDER BY wanted.place;
