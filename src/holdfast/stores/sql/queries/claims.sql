-- Statements about claims for every database: runs that were claimed before without progress, and what a worker is told.

-- name: stuck_running
-- Whether this worker is driving such a run already.
SELECT 1 FROM runs WHERE ended IS NULL AND owner = $1 AND claims > 1
AND status IN ('running', 'cancelling', 'compensating') LIMIT 1;

-- name: block_poison
-- A run that was driven alone three times and never got anywhere.
UPDATE runs SET status = 'blocked', owner = NULL, due = NULL, wait = '', lost = '', updated = $2 WHERE key = $1;

-- name: taken_runs
-- rows: key int, lost text, status text, due int
-- What the worker needs to know of them, in the order given; `lost`, `status` and `due` are what they were before.
SELECT {claim} FROM {rows} AS taken {join} runs ON runs.key = taken.key {join} inputs ON inputs.run = runs.key;

-- name: running_tasks
-- How many attempts from a queue workers have.
SELECT count(*) FROM tasks WHERE queue = $1 AND owner IS NOT NULL AND owner <> '';

-- name: task_priorities
-- The priorities of the attempts of one activity that wait in one queue: jumps from one to the next in the index.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM tasks WHERE owner IS NULL AND queue = $1 AND activity = $2
    UNION ALL
    SELECT (SELECT max(priority) FROM tasks
            WHERE owner IS NULL AND queue = $1 AND activity = $2 AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT priority FROM levels WHERE priority IS NOT NULL;
