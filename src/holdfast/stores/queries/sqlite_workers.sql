-- Statements about workers: who is alive and what becomes of the runs of those who are not.

-- name: join_worker
-- Announce a worker.
INSERT OR REPLACE INTO workers (id, boot, lease_until, lease, pid, host, lock, joined, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'live');

-- name: renew_worker
-- Extend a lease unless the worker was declared dead.
UPDATE workers SET lease_until = ?2 + lease WHERE id = ?1 AND state = 'live';

-- name: live_workers
-- Everybody thought to be alive.
SELECT id, boot, lease_until, lock FROM workers WHERE state = 'live';

-- name: declare_dead
-- Unless it renewed its lease since it was looked at (?3 = 1: known to have died, whatever its lease says).
UPDATE workers SET state = 'dead' WHERE id = ?1 AND state = 'live' AND (?3 OR lease_until < ?2);

-- name: free_lost
-- What a dead worker was running. The epoch moves at once: a worker that only hung must not write after this.
UPDATE runs SET owner = NULL, due = ?2, lost = ?3, epoch = epoch + 1, updated = ?2
WHERE ended IS NULL AND owner = ?1 AND status IN ('pending', 'running', 'cancelling', 'compensating', 'paused');

-- name: prune_dead
-- Dead workers that no open run names.
DELETE FROM workers WHERE state = 'dead'
    AND NOT EXISTS (SELECT 1 FROM runs WHERE ended IS NULL AND owner = workers.id);

-- name: hand_back
-- All runs of a worker that stops in order: those it was running are due at once, parked ones when they were.
UPDATE runs SET owner = NULL, lost = '', epoch = epoch + 1, claims = 0,
                due = iif(status IN ('pending', 'running', 'cancelling', 'compensating', 'paused'), updated, due)
WHERE ended IS NULL AND owner = ?;

-- name: delete_worker
-- A worker that left.
DELETE FROM workers WHERE id = ?;
