-- Statements about workers: who is alive and what becomes of the runs of those who are not.

-- name: join_worker
-- Announce a worker.
INSERT OR REPLACE INTO workers (id, boot, lease_until, lease, pid, host, lock, joined, about, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'live');

-- name: renew_worker
-- Extend a lease unless the worker was declared dead.
UPDATE workers SET lease_until = ?2 + lease, load = ?3 WHERE id = ?1 AND state = 'live';

-- name: live_leases
-- Workers that were not declared dead.
SELECT id, boot, lease_until, lock FROM workers WHERE state = 'live';

-- name: last_renewal
-- In which boot of the machine a worker renewed its lease last, and when.
SELECT boot, lease_until - lease FROM workers WHERE id = ?1;

-- name: declare_dead
-- Unless it renewed its lease since it was looked at (?3 = 1: known to have died, whatever its lease says).
UPDATE workers SET state = 'dead' WHERE id = ?1 AND state = 'live' AND (?3 OR lease_until < ?2);

-- name: age_dead
-- Workers that died in another boot of the machine, or before a time: they do not count as recent deaths.
UPDATE workers SET state = 'gone' WHERE state = 'dead' AND (boot <> ?1 OR lease_until - lease < ?2);
