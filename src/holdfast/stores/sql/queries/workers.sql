-- Statements about workers, for every database: what becomes of the runs of those who are not there any more.

-- name: free_lost
-- What a dead worker was running, due since it was last known to be alive ($4). The epoch moves at once: a worker that
-- only hung must not write after this.
UPDATE runs SET owner = NULL, due = $4, lost = $3, epoch = epoch + 1, updated = $2
WHERE ended IS NULL AND owner = $1 AND status IN ('pending', 'running', 'cancelling', 'compensating', 'paused');

-- name: run_by
-- What a worker is running.
SELECT id FROM runs
WHERE ended IS NULL AND owner = $1 AND status IN ('pending', 'running', 'cancelling', 'compensating', 'paused') ORDER BY key;

-- name: recent_deaths
-- How many workers died of late.
SELECT count(*) FROM workers WHERE state = 'dead';

-- name: prune_dead
-- Workers that died a while ago and that no open run names.
DELETE FROM workers WHERE state = 'gone'
    AND NOT EXISTS (SELECT 1 FROM runs WHERE ended IS NULL AND owner = workers.id);

-- name: hand_back
-- All runs of a worker that stops in order: those it was running are due at once, parked ones when they were.
UPDATE runs SET owner = NULL, lost = '', epoch = epoch + 1, claims = 0,
                due = CASE WHEN status IN ('pending', 'running', 'cancelling', 'compensating', 'paused') THEN updated ELSE due END
WHERE ended IS NULL AND owner = $1;

-- name: delete_worker
-- A worker that left.
DELETE FROM workers WHERE id = $1;
