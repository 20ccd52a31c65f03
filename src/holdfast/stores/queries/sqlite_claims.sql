-- Statements that hand runs to workers and look for work.

-- name: dead_workers
-- Workers declared dead whose parked runs anybody may take.
SELECT id FROM workers WHERE state = 'dead';

-- name: due_runs
-- Due runs of nobody or of a dead worker, most overdue first: fresh ones (?4 = 0) or suspects (?4 = 1).
SELECT key, claims, lost FROM (
    SELECT key, claims, lost, due FROM runs
    WHERE ended IS NULL AND owner IS NULL AND due <= ?1 AND (claims > 0) = ?4
      AND workflow IN (SELECT value FROM json_each(?2))
    UNION ALL
    SELECT key, claims, lost, due FROM runs
    WHERE ended IS NULL AND owner IN (SELECT id FROM workers WHERE state = 'dead') AND due <= ?1 AND (claims > 0) = ?4
      AND workflow IN (SELECT value FROM json_each(?2)))
ORDER BY due, key LIMIT ?3;

-- name: anything_due
-- Whether a claim would find anything, asked before taking the write lock.
SELECT EXISTS (SELECT 1 FROM runs WHERE ended IS NULL AND owner IS NULL AND due <= ?1)
    OR EXISTS (SELECT 1 FROM runs WHERE ended IS NULL AND owner IN (SELECT id FROM workers WHERE state = 'dead')
               AND due <= ?1);

-- name: suspect_running
-- Whether this worker is driving a suspect already.
SELECT EXISTS (SELECT 1 FROM runs WHERE ended IS NULL AND owner = ? AND claims > 1
               AND status IN ('running', 'cancelling', 'compensating'));

-- name: block_poison
-- A run that was claimed three times and never got anywhere.
UPDATE runs SET status = 'blocked', owner = NULL, due = NULL, wait = '', lost = '', updated = ?2 WHERE key = ?1;

-- name: take_runs
-- Make runs this worker's.
UPDATE runs SET owner = ?1, epoch = epoch + 1, due = NULL, wait = '', claims = claims + 1, lost = '', updated = ?2,
                status = iif(status IN ('cancelling', 'compensating'), status, 'running')
WHERE key IN (SELECT value FROM json_each(?3));

-- name: taken_runs
-- What the worker needs to know of them, in the order given.
SELECT runs.key, runs.id, runs.epoch, runs.workflow, runs.version, inputs.input, runs.seed, runs.generation, runs.status,
       runs.claims, runs.created
FROM json_each(?) AS taken CROSS JOIN runs ON runs.key = taken.value JOIN inputs ON inputs.run = runs.key
ORDER BY taken.key;

-- name: own_due
-- Runs of this worker whose inbox moved or whose timer is due.
SELECT key FROM runs WHERE ended IS NULL AND owner = ? AND due <= ? ORDER BY due, key;

-- name: next_due
-- When the next run that anybody may claim becomes due.
SELECT min(due) FROM (
    SELECT min(due) AS due FROM runs WHERE ended IS NULL AND owner IS NULL AND due IS NOT NULL
    UNION ALL
    SELECT (SELECT min(due) FROM runs WHERE ended IS NULL AND owner = workers.id AND due IS NOT NULL)
    FROM workers WHERE state = 'dead');
