-- Statements that hand runs to workers and look for work.

-- name: dead_workers
-- Workers declared dead whose parked runs any worker may take.
SELECT id FROM workers WHERE state <> 'live';

-- name: priorities
-- The priorities of the open runs of one owner (or none), highest first: jumps from one to the next in the index.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM runs WHERE ended IS NULL AND owner IS ?1
    UNION ALL
    SELECT (SELECT max(priority) FROM runs WHERE ended IS NULL AND owner IS ?1 AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT priority FROM levels WHERE priority IS NOT NULL;

-- name: due_runs
-- Due runs of one owner (or none) and one priority, most overdue first: fresh ones (?5 = 0) or stuck ones (?5 = 1). One
-- owner and one priority at a time, so that the index gives the order and a claim does not look at the whole backlog.
SELECT -priority, due, key, claims, lost, status FROM runs
WHERE ended IS NULL AND owner IS ?1 AND priority = ?6 AND due <= ?2 AND (claims > 0) = ?5
  AND workflow IN (SELECT value FROM json_each(?3))
ORDER BY due, key LIMIT ?4;

-- name: take_runs
-- Make runs this worker's.
UPDATE runs SET owner = ?1, epoch = epoch + 1, due = NULL, wait = '', claims = {taken}, lost = '', updated = ?2,
                status = iif(status IN ('cancelling', 'compensating'), status, 'running')
WHERE key IN (SELECT value FROM json_each(?3));

-- name: waiting_tasks
-- Attempts of one activity that wait in one queue, in the order of their index.
SELECT -priority, at, run, location FROM tasks
WHERE owner IS NULL AND queue = ?1 AND activity = ?2
AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = tasks.run AND (runs.status = 'paused'
    OR EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)))
ORDER BY priority DESC, at LIMIT ?3;

-- name: tasks_of_priority
-- The oldest of them of one priority.
SELECT -priority, at, run, location FROM tasks
WHERE owner IS NULL AND queue = ?1 AND activity = ?2 AND priority = ?4
AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = tasks.run AND (runs.status = 'paused'
    OR EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)))
ORDER BY at LIMIT ?3;

-- name: take_task
-- Make an attempt this worker's.
UPDATE tasks SET owner = ?1 WHERE run = ?2 AND location = ?3;

-- name: taken_task
-- What the worker needs to know of it.
SELECT tasks.run, runs.id, runs.workflow, tasks.location, tasks.attempt, tasks.queue, tasks.activity, tasks.payload
FROM tasks JOIN runs ON runs.key = tasks.run WHERE tasks.run = ?1 AND tasks.location = ?2;

-- name: own_due
-- Runs of this worker whose inbox moved or whose timer is due.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM runs WHERE ended IS NULL AND owner = ?1
    UNION ALL
    SELECT (SELECT max(priority) FROM runs WHERE ended IS NULL AND owner = ?1 AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT key FROM levels CROSS JOIN runs ON ended IS NULL AND owner = ?1 AND runs.priority = levels.priority AND due <= ?2
ORDER BY levels.priority DESC, due, key;

-- name: next_due
-- When the next run of one owner (or none) becomes due, of any workflow (?2 is null) or of those named.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM runs WHERE ended IS NULL AND owner IS ?1
    UNION ALL
    SELECT (SELECT max(priority) FROM runs WHERE ended IS NULL AND owner IS ?1 AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT min(due) FROM (
    SELECT (SELECT due FROM runs
            WHERE ended IS NULL AND owner IS ?1 AND runs.priority = levels.priority AND due IS NOT NULL
              AND (?2 IS NULL OR workflow IN (SELECT value FROM json_each(?2)))
            ORDER BY due LIMIT 1) AS due
    FROM levels WHERE levels.priority IS NOT NULL);
