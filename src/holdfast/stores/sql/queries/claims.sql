-- Statements about runs that were claimed before without progress, for every database.

-- name: stuck_running
-- Whether this worker is driving such a run already.
SELECT 1 FROM runs WHERE ended IS NULL AND owner = $1 AND claims > 1
AND status IN ('running', 'cancelling', 'compensating') LIMIT 1;

-- name: block_poison
-- A run that was driven alone three times and never got anywhere.
UPDATE runs SET status = 'blocked', owner = NULL, due = NULL, wait = '', lost = '', updated = $2 WHERE key = $1;
