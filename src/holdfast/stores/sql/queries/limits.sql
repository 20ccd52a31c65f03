-- Limits that workers share: see stores/rules/limits. Whatever names a limit has its name first, by which PostgreSQL
-- locks it.

-- name: get_limit
-- rows: name text, key text, worker text
-- A limit, with one of its keys and what one worker has of that.
SELECT wanted.name, wanted.key, wanted.worker, limits.spec, limits.override, limits.paused, limits.used, limits.granted,
    limits.waiting, limits.last, limits.stale, limit_keys.used, limit_keys.granted, limit_keys.waiting, limit_keys.ready,
    limit_keys.head_priority, limit_keys.head, limit_keys.invited, limit_keys.begins, limit_keys.held_until,
    limit_keys.failures, limit_keys.open_until, limit_keys.probe, limit_keys.idle, limit_keys.at, limit_counts.used
FROM {rows} AS wanted {join} limits ON limits.name = wanted.name
LEFT JOIN limit_keys ON limit_keys.name = wanted.name AND limit_keys.key = wanted.key
LEFT JOIN limit_counts ON limit_counts.name = wanted.name AND limit_counts.key = wanted.key AND limit_counts.worker = wanted.worker;

-- name: insert_limit
-- A limit that is declared for the first time.
INSERT INTO limits (name, spec, override, paused, used, granted, waiting, last, stale, updated)
VALUES ($1, $2, NULL, 0, 0, 0, 0, 0, 0, $3);

-- name: change_limit
-- Other numbers, or a pause.
UPDATE limits SET spec = $2, override = $3, paused = $4, updated = $5 WHERE name = $1;

-- name: put_limits
-- rows: name text, used int, granted int, waiting int, last int, stale int
-- What is used of limits.
UPDATE limits SET used = new.used, granted = new.granted, waiting = new.waiting, last = new.last, stale = new.stale
FROM {rows} AS new WHERE limits.name = new.name;

-- name: put_limit_keys
-- rows: name text, key text, used int, granted int, waiting int, ready int, head_priority int, head int, invited int, begins text, held_until int, failures int, open_until int, probe text, idle int, at int
-- Keys that are in use.
INSERT INTO limit_keys ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (name, key) DO UPDATE SET used = excluded.used, granted = excluded.granted, waiting = excluded.waiting,
    ready = excluded.ready, head_priority = excluded.head_priority, head = excluded.head, invited = excluded.invited,
    begins = excluded.begins, held_until = excluded.held_until, failures = excluded.failures,
    open_until = excluded.open_until, probe = excluded.probe, idle = excluded.idle, at = excluded.at;

-- name: delete_limit_keys
-- rows: name text, key text
-- Keys that are not in use any more.
DELETE FROM limit_keys WHERE (name, key) IN (SELECT name, key FROM {rows} AS gone);

-- name: put_limit_counts
-- rows: name text, key text, worker text, used int
-- How many places workers have.
INSERT INTO limit_counts ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (name, key, worker) DO UPDATE SET used = excluded.used;

-- name: delete_limit_counts
-- rows: name text, key text, worker text
-- Workers that have no place any more.
DELETE FROM limit_counts WHERE (name, key, worker) IN (SELECT name, key, worker FROM {rows} AS gone);

-- name: limit_counts_of
-- The places that a worker has.
SELECT name, key, used FROM limit_counts WHERE worker = $1 ORDER BY name, key;

-- name: put_limit_waiter
-- A step waits in line.
INSERT INTO limit_waiters (run, location, name, key, priority, n, since, granted, place, task)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (run, location) DO UPDATE SET name = excluded.name, key = excluded.key, priority = excluded.priority,
    n = excluded.n, since = excluded.since, granted = excluded.granted, place = excluded.place, task = excluded.task;

-- name: get_limit_waiter
-- The step at a location of a run, if it waits.
SELECT run, location, name, key, priority, n, since, granted, place, task FROM limit_waiters WHERE run = $1 AND location = $2;

-- name: limit_waiters_of
-- The steps of a run that wait.
SELECT run, location, name, key, priority, n, since, granted, place, task FROM limit_waiters WHERE run = $1 ORDER BY location;

-- name: first_limit_waiter
-- The first step in line that was not given its turn.
SELECT run, location, name, key, priority, n, since, granted, place, task FROM limit_waiters
WHERE name = $1 AND key = $2 AND granted IS NULL ORDER BY priority DESC, n LIMIT 1;

-- name: grant_limit_turn
-- Give a step its turn.
UPDATE limit_waiters SET granted = $4, place = $5 WHERE run = $2 AND location = $3 AND name = $1;

-- name: delete_limit_waiter
-- A step waits no longer.
DELETE FROM limit_waiters WHERE run = $2 AND location = $3 AND name = $1;

-- name: next_limit_key
-- The key whose first waiter is the first of those that may begin.
SELECT name, key, used, granted, waiting, ready, head_priority, head, invited, begins, held_until, failures, open_until,
    probe, idle, at
FROM limit_keys WHERE name = $1 AND ready = 1 ORDER BY head_priority DESC, head LIMIT 1;

-- name: waiting_limit_keys
-- The keys under which steps wait, and of which something was written after an instant ($2).
SELECT name, key, used, granted, waiting, ready, head_priority, head, invited, begins, held_until, failures, open_until,
    probe, idle, at
FROM limit_keys WHERE name = $1 AND waiting > 0 AND at >= $2;

-- name: later_limit_keys
-- The keys of which something was written after an instant.
SELECT name, key, used, granted, waiting, ready, head_priority, head, invited, begins, held_until, failures, open_until,
    probe, idle, at
FROM limit_keys WHERE at > $1;

-- name: other_live_workers
-- Whether a worker besides this one is at work.
SELECT 1 FROM workers WHERE state = 'live' AND id <> $1 LIMIT 1;

-- name: take_back_turn
-- The first in line of a key that was told when it may begin waits as the others do.
UPDATE limit_waiters SET granted = NULL WHERE name = $1 AND key = $2 AND granted IS NOT NULL AND place = 0;

-- name: date_limit_turns
-- Turns that were given by a process that did not know the time, or, if they lie after an instant ($2), in another boot.
UPDATE limit_waiters SET granted = $1 WHERE granted = -1 OR (granted > $2 AND place = 1);

-- name: late_limit_turns
-- Turns that were given before an instant and not used.
SELECT run, location, name, key, priority, n, since, granted, place, task FROM limit_waiters
WHERE granted IS NOT NULL AND granted < $1 ORDER BY granted LIMIT 1000;

-- name: stale_limits
-- Limits of which turns became free when the time was not known.
SELECT name FROM limits WHERE stale = 1;

-- name: forget_limit_keys
-- Keys that are not in use, and of which nothing matters any more.
DELETE FROM limit_keys WHERE used = 0 AND granted = 0 AND waiting = 0 AND idle <= $1;

-- name: limits_to_see_to
-- Whether there is anything for GrantTurns to do.
SELECT 1 WHERE EXISTS (SELECT 1 FROM limits WHERE stale = 1)
OR EXISTS (SELECT 1 FROM limit_waiters WHERE granted IS NOT NULL AND granted < $1)
OR EXISTS (SELECT 1 FROM limit_keys WHERE used = 0 AND granted = 0 AND waiting = 0 AND idle <= $2);

-- name: paused_limit_turns
-- rows: kind text, name text
-- Turns that steps of paused workflows have, and attempts in paused queues: places, and instants (which may be later).
SELECT limit_waiters.run, limit_waiters.location, limit_waiters.name, limit_waiters.key, limit_waiters.priority, limit_waiters.n,
    limit_waiters.since, limit_waiters.granted, limit_waiters.place, limit_waiters.task
FROM limit_waiters {join} runs ON runs.key = limit_waiters.run
LEFT JOIN tasks ON tasks.run = limit_waiters.run AND tasks.location = limit_waiters.location
WHERE limit_waiters.granted IS NOT NULL AND EXISTS (SELECT 1 FROM {rows} AS paused WHERE
    (paused.kind = 'workflow' AND paused.name = runs.workflow) OR (paused.kind = 'queue' AND paused.name = tasks.queue))
ORDER BY limit_waiters.granted LIMIT 1000;

-- name: read_limit_waits
-- rows: run int
-- The steps of runs that wait, and from when they may begin; attempts in queues are not among them.
SELECT limit_waiters.run, limit_waiters.location, limit_waiters.name, limit_waiters.key, limit_waiters.since, limit_waiters.granted
FROM {rows} AS wanted {join} limit_waiters ON limit_waiters.run = wanted.run WHERE limit_waiters.task = 0;

-- name: limit_waits_of
-- The steps of a run that wait, attempts in queues included, and how their limits and keys stand.
SELECT limit_waiters.location, limit_waiters.name, limit_waiters.key, limit_waiters.since, limit_waiters.granted, limits.paused,
    coalesce(limits.override, limits.spec), limit_keys.invited, coalesce(limit_keys.held_until, 0), limit_keys.open_until
FROM limit_waiters {join} limits ON limits.name = limit_waiters.name
LEFT JOIN limit_keys ON limit_keys.name = limit_waiters.name AND limit_keys.key = limit_waiters.key
WHERE limit_waiters.run = $1 ORDER BY limit_waiters.location;

-- name: admission_of
-- How a run waits for its turn or for a place.
SELECT lane, since, first FROM run_places WHERE run = $1 AND held <= 0;

-- name: wrong_limits
-- Limits and keys whose counters are not what they count; there are none.
SELECT name, key FROM limit_keys
WHERE used <> (SELECT coalesce(sum(limit_counts.used), 0) FROM limit_counts
               WHERE limit_counts.name = limit_keys.name AND limit_counts.key = limit_keys.key)
   OR granted <> (SELECT count(*) FROM limit_waiters
                  WHERE limit_waiters.name = limit_keys.name AND limit_waiters.key = limit_keys.key AND place = 1)
   OR waiting <> (SELECT count(*) FROM limit_waiters
                  WHERE limit_waiters.name = limit_keys.name AND limit_waiters.key = limit_keys.key AND place = 0)
UNION ALL
SELECT name, '*' FROM limits
WHERE used <> (SELECT coalesce(sum(limit_counts.used), 0) FROM limit_counts WHERE limit_counts.name = limits.name)
   OR granted <> (SELECT count(*) FROM limit_waiters WHERE limit_waiters.name = limits.name AND place = 1)
   OR waiting <> (SELECT count(*) FROM limit_waiters WHERE limit_waiters.name = limits.name AND place = 0)
UNION ALL
SELECT activity, limit_key FROM tasks WHERE owner = '' AND NOT EXISTS (SELECT 1 FROM limit_waiters
    WHERE limit_waiters.run = tasks.run AND limit_waiters.location = tasks.location AND limit_waiters.task = 1);

-- name: read_limits
-- All limits.
SELECT name, spec, override, paused, used, granted, waiting FROM limits ORDER BY name;

-- name: read_limit_keys
-- The keys of a limit that are used most.
SELECT name, key, used, granted, waiting, invited, held_until, failures, open_until, probe FROM limit_keys
WHERE name = $1 ORDER BY waiting DESC, used DESC, key LIMIT $2;

-- name: limited_tasks
-- Attempts of one activity that wait in one queue, and are not in line for their limit, in the order of their index.
SELECT -tasks.priority, tasks.at, tasks.run, tasks.location, runs.id, runs.workflow, tasks.attempt, tasks.queue, tasks.activity,
    tasks.payload, tasks.limit_key
FROM tasks {join} runs ON runs.key = tasks.run
WHERE tasks.owner IS NULL AND tasks.queue = $1 AND tasks.activity = $2 AND runs.status <> 'paused'
AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)
ORDER BY tasks.priority DESC, tasks.at, tasks.run, tasks.location LIMIT $3 {skip_locked};

-- name: limited_tasks_of_priority
-- The oldest of them of one priority.
SELECT -tasks.priority, tasks.at, tasks.run, tasks.location, runs.id, runs.workflow, tasks.attempt, tasks.queue, tasks.activity,
    tasks.payload, tasks.limit_key
FROM tasks {join} runs ON runs.key = tasks.run
WHERE tasks.owner IS NULL AND tasks.queue = $1 AND tasks.activity = $2 AND tasks.priority = $4 AND runs.status <> 'paused'
AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)
ORDER BY tasks.at, tasks.run, tasks.location LIMIT $3 {skip_locked};

-- name: own_task
-- Make an attempt a worker's, or (the empty text) put it in line.
UPDATE tasks SET owner = $1 WHERE run = $2 AND location = $3;

-- name: unpark_task
-- Let workers take an attempt that was in line.
UPDATE tasks SET owner = NULL WHERE run = $1 AND location = $2 AND owner = '';

-- name: due_task_turns
-- The attempts in line that were told from when on they may begin, and may now.
SELECT run, location FROM limit_waiters
WHERE name = $1 AND task = 1 AND granted IS NOT NULL AND granted <= $2 AND place = 0 ORDER BY granted LIMIT $3;

-- name: next_task_turn
-- From when on the next of the attempts in line may begin that were told so.
SELECT min(granted) FROM limit_waiters WHERE name = $1 AND task = 1 AND granted IS NOT NULL AND place = 0;

-- name: any_limited_task
-- rows: queue text, activity text
-- Whether attempts wait that are not in line.
SELECT 1 FROM {rows} AS wanted WHERE EXISTS (
    SELECT 1 FROM tasks WHERE tasks.owner IS NULL AND tasks.queue = wanted.queue AND tasks.activity = wanted.activity) LIMIT 1;
