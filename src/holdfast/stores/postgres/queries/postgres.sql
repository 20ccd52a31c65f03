-- What PostgreSQL says in its own way: locks, the hot path, claims, workers.

-- name: lock_names
-- Lock names that have no row of their own, lowest first.
{beside_others}
SELECT name_locks.n FROM name_locks WHERE NOT EXISTS (SELECT 1 FROM shared)
AND name_locks.n = ANY (ARRAY(SELECT value::int FROM jsonb_array_elements_text($1::jsonb)))
ORDER BY name_locks.n FOR UPDATE OF name_locks;

-- name: lock_limits
-- Lock limits of this schema ($1), lowest first, each to be shared (1) or not (0), until the transaction ends. Not as rows:
-- those who share a row can keep one who wants it for itself waiting for ever, and each of them would write it.
{beside_others}
SELECT CASE WHEN wanted.shared = 1 THEN pg_advisory_xact_lock_shared($1::int, wanted.n) ELSE pg_advisory_xact_lock($1::int, wanted.n) END
FROM (SELECT (value ->> 0)::int AS n, (value ->> 1)::int AS shared FROM jsonb_array_elements($2::jsonb) ORDER BY 1) AS wanted
WHERE NOT EXISTS (SELECT 1 FROM shared);

-- name: lock_runs
-- Lock every run a batch may change, lowest key first: by key ($1), by id ($2), the parents of those that end ($3), those that
-- wait for events ($4) or for idempotency keys ($5), the first that wait for limits ($6). As an array: PostgreSQL takes it
-- to be short, and looks for each key, where it would read all runs between the first and the last.
{beside_others}
SELECT runs.key FROM runs WHERE NOT EXISTS (SELECT 1 FROM shared) AND runs.key = ANY (ARRAY({wanted}))
ORDER BY runs.key FOR UPDATE OF runs;

-- name: locked_runs
-- The same runs as they are now that they are locked.
SELECT {run} FROM runs WHERE runs.key = ANY (ARRAY({wanted}));

-- name: append_facts
-- rows: run int, epoch int, location text, seq int, kind int, at int, data text
-- The hot path: facts of runs that are still ours, as a transaction of its own, before an instant ($2). Returns who is
-- fenced.
{beside_others}, new AS MATERIALIZED (SELECT * FROM {rows} AS given),
mine AS MATERIALIZED (
    SELECT runs.key, runs.epoch FROM runs
    WHERE NOT EXISTS (SELECT 1 FROM shared) AND {clock} < $2 AND (runs.key, runs.epoch) IN (SELECT run, epoch FROM new) AND runs.ended IS NULL
    ORDER BY runs.key FOR NO KEY UPDATE OF runs
), written AS (
    INSERT INTO entries (run, location, seq, kind, at, data)
    SELECT new.run, new.location, new.seq, new.kind, new.at, new.data
    FROM new JOIN mine ON mine.key = new.run AND mine.epoch = new.epoch ON CONFLICT DO NOTHING
)
SELECT DISTINCT run, epoch FROM new WHERE (run, epoch) NOT IN (SELECT key, epoch FROM mine);

-- name: insert_event
-- An event that waits. Its number ($5) says when it was published, and is higher than every other of its name.
WITH next AS (
    INSERT INTO event_queues (name, pending, last) VALUES ($1, 0, $5)
    ON CONFLICT (name) DO UPDATE SET last = greatest(event_queues.last + 1, excluded.last) RETURNING last
)
INSERT INTO events (name, n, id, payload, at) SELECT $1, next.last, $2, $3, $4 FROM next RETURNING n;

-- name: put_token
-- Say in a commit that it happened.
INSERT INTO commit_tokens (token, made) VALUES ($1, 1);

-- name: drop_tokens
-- rows: token text
-- Commits whose outcome is known need that no more.
DELETE FROM commit_tokens WHERE token IN (SELECT token FROM {rows} AS known);

-- name: settle_token
-- Find out whether a commit happened (1), and see to it that it never will if it did not: the row stays in its way.
INSERT INTO commit_tokens (token, made) VALUES ($1, 0)
ON CONFLICT (token) DO UPDATE SET made = commit_tokens.made RETURNING made;

-- name: old_tokens
-- Tokens that no process asks for any more; ids sort by time.
DELETE FROM commit_tokens WHERE token < $1;

-- name: claim_runs
-- Make due runs this worker's ($1), by priority, in each taking turns among workflows, most overdue first; or ($5 = 1) the
-- most overdue of any priority. Jumps from one workflow and priority to the next in the index, so that neither a backlog nor those who sleep are looked at.
WITH RECURSIVE shared AS MATERIALIZED ({shared}), known AS MATERIALIZED (
    SELECT value AS workflow FROM jsonb_array_elements_text($4::jsonb)
    WHERE NOT EXISTS (SELECT 1 FROM shared) AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND workers.state = 'live')
), levels (workflow, priority) AS (
    SELECT known.workflow, (SELECT max(runs.priority) FROM runs WHERE runs.workflow = known.workflow AND {due}) FROM known
    UNION ALL
    SELECT levels.workflow, (SELECT max(runs.priority) FROM runs WHERE runs.workflow = levels.workflow
                             AND runs.priority < levels.priority AND {due})
    FROM levels WHERE levels.priority IS NOT NULL
), waiting AS (
    SELECT found.key, levels.workflow, levels.priority, found.due FROM levels CROSS JOIN LATERAL (
        SELECT runs.key, runs.due FROM runs
        WHERE runs.workflow = levels.workflow AND runs.priority = levels.priority AND runs.due <= $2 AND {due}
        ORDER BY runs.due, runs.key LIMIT $3 * 2
    ) AS found WHERE levels.priority IS NOT NULL
    UNION ALL
    SELECT found.key, found.workflow, found.priority, found.due FROM workers CROSS JOIN LATERAL (
        SELECT runs.key, runs.workflow, runs.priority, runs.due FROM runs
        WHERE runs.ended IS NULL AND runs.owner = workers.id AND runs.due <= $2 AND runs.claims = 0
        AND runs.workflow IN (SELECT known.workflow FROM known)
        ORDER BY runs.due LIMIT $3 * 2
    ) AS found WHERE workers.state <> 'live'
), ranked AS (
    SELECT key, priority, due, row_number() OVER (PARTITION BY priority, workflow ORDER BY due, key) AS place FROM waiting
), chosen AS MATERIALIZED (
    SELECT key, row_number() OVER (ORDER BY {overdue}, priority DESC, place, due, key) AS place FROM ranked
    ORDER BY {overdue}, priority DESC, place, due, key LIMIT $3 * 2
), taken AS MATERIALIZED (
    SELECT runs.key, runs.lost, runs.status, runs.due, chosen.place FROM chosen JOIN runs ON runs.key = chosen.key
    WHERE runs.ended IS NULL AND runs.due <= $2 AND runs.claims = 0 AND {free}
    ORDER BY chosen.place LIMIT $3 FOR UPDATE OF runs SKIP LOCKED
)
UPDATE runs SET owner = $1, epoch = runs.epoch + 1, due = NULL, wait = '', claims = {taken}, lost = '', updated = $2,
    status = CASE WHEN runs.status IN ('cancelling', 'compensating') THEN runs.status ELSE 'running' END
FROM taken JOIN inputs ON inputs.run = taken.key WHERE runs.key = taken.key
RETURNING taken.place, {claim};

-- name: due_stuck
-- The next due run that was claimed before without progress.
{beside_others}
SELECT runs.key, runs.claims FROM runs
WHERE NOT EXISTS (SELECT 1 FROM shared) AND runs.ended IS NULL AND runs.due IS NOT NULL AND runs.due <= $1 AND runs.claims > 0
AND runs.workflow IN (SELECT value FROM jsonb_array_elements_text($2::jsonb)) AND {free}
ORDER BY runs.priority DESC, runs.due, runs.key LIMIT 1 FOR UPDATE OF runs SKIP LOCKED;

-- name: claim_stuck
-- Make it this worker's.
WITH taken AS MATERIALIZED (SELECT key, lost, status, due FROM runs WHERE key = $3)
UPDATE runs SET owner = $1, epoch = runs.epoch + 1, due = NULL, wait = '', claims = {taken}, lost = '', updated = $2,
    status = CASE WHEN runs.status IN ('cancelling', 'compensating') THEN runs.status ELSE 'running' END
FROM taken JOIN inputs ON inputs.run = taken.key
WHERE runs.key = taken.key AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND workers.state = 'live')
RETURNING 1, {claim};

-- name: own_due
-- Runs of this worker whose inbox moved or whose timer is due.
SELECT key FROM runs WHERE ended IS NULL AND owner = $1 AND due <= $2 ORDER BY priority DESC, due, key;

-- name: next_due
-- When the next run of the named workflows that any worker may claim becomes due.
WITH RECURSIVE known AS MATERIALIZED (SELECT value AS workflow FROM jsonb_array_elements_text($1::jsonb)),
levels (workflow, priority) AS (
    SELECT known.workflow, (SELECT max(runs.priority) FROM runs WHERE runs.workflow = known.workflow AND {due}) FROM known
    UNION ALL
    SELECT levels.workflow, (SELECT max(runs.priority) FROM runs WHERE runs.workflow = levels.workflow
                             AND runs.priority < levels.priority AND {due})
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT min(due) FROM (
    SELECT (SELECT runs.due FROM runs WHERE runs.workflow = levels.workflow AND runs.priority = levels.priority AND {due}
            ORDER BY runs.due LIMIT 1) AS due FROM levels WHERE levels.priority IS NOT NULL
    UNION ALL
    SELECT (SELECT min(runs.due) FROM runs WHERE runs.ended IS NULL AND runs.due IS NOT NULL AND runs.claims > 0
            AND runs.workflow IN (SELECT known.workflow FROM known) AND {free})
    UNION ALL
    SELECT (SELECT min(runs.due) FROM runs WHERE runs.ended IS NULL AND runs.owner = workers.id
            AND runs.workflow IN (SELECT known.workflow FROM known)) FROM workers WHERE workers.state <> 'live'
) AS dues;

-- name: next_due_of_any
-- The same of every workflow.
SELECT min(runs.due) FROM runs WHERE runs.ended IS NULL AND runs.due IS NOT NULL AND {free};

-- name: claim_tasks
-- Make attempts that wait in queues this worker's ($1), by priority, then oldest first.
{beside_others}, waiting AS MATERIALIZED (
    SELECT found.run, found.location FROM jsonb_array_elements_text($3::jsonb) AS queue
    CROSS JOIN jsonb_array_elements_text($4::jsonb) AS activity CROSS JOIN LATERAL (
        SELECT tasks.run, tasks.location FROM tasks
        WHERE tasks.owner IS NULL AND tasks.queue = queue.value AND tasks.activity = activity.value
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = tasks.run AND (runs.status = 'paused'
            OR EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)))
        ORDER BY tasks.priority DESC, tasks.at LIMIT $2 * 2
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM shared)
    AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND workers.state = 'live')
), taken AS MATERIALIZED (
    SELECT tasks.run, tasks.location, row_number() OVER () AS place FROM (
        SELECT tasks.run, tasks.location FROM waiting
        JOIN tasks ON tasks.run = waiting.run AND tasks.location = waiting.location WHERE tasks.owner IS NULL
        ORDER BY tasks.priority DESC, tasks.at, tasks.run, tasks.location LIMIT $2 FOR UPDATE OF tasks SKIP LOCKED
    ) AS tasks
)
UPDATE tasks SET owner = $1 FROM taken JOIN runs ON runs.key = taken.run
WHERE tasks.run = taken.run AND tasks.location = taken.location
RETURNING taken.place, tasks.run, runs.id, runs.workflow, tasks.location, tasks.attempt, tasks.queue, tasks.activity,
    tasks.payload;

-- name: claim_oldest_tasks
-- Make attempts that wait in queues this worker's ($1), oldest first, whatever their priority: of each the first are looked at.
WITH RECURSIVE shared AS MATERIALIZED ({shared}), levels (queue, activity, priority) AS (
    SELECT queues.value, activities.value, (SELECT max(tasks.priority) FROM tasks
        WHERE tasks.owner IS NULL AND tasks.queue = queues.value AND tasks.activity = activities.value)
    FROM jsonb_array_elements_text($3::jsonb) AS queues CROSS JOIN jsonb_array_elements_text($4::jsonb) AS activities
    WHERE NOT EXISTS (SELECT 1 FROM shared)
    AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND workers.state = 'live')
    UNION ALL
    SELECT levels.queue, levels.activity, (SELECT max(tasks.priority) FROM tasks
        WHERE tasks.owner IS NULL AND tasks.queue = levels.queue AND tasks.activity = levels.activity
        AND tasks.priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
), waiting AS MATERIALIZED (
    SELECT found.run, found.location FROM levels CROSS JOIN LATERAL (
        SELECT tasks.run, tasks.location FROM tasks
        WHERE tasks.owner IS NULL AND tasks.queue = levels.queue AND tasks.activity = levels.activity
        AND tasks.priority = levels.priority
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = tasks.run AND (runs.status = 'paused'
            OR EXISTS (SELECT 1 FROM pauses WHERE pauses.kind = 'workflow' AND pauses.name = runs.workflow)))
        ORDER BY tasks.at LIMIT $2 * 2
    ) AS found WHERE levels.priority IS NOT NULL
), taken AS MATERIALIZED (
    SELECT tasks.run, tasks.location, row_number() OVER () AS place FROM (
        SELECT tasks.run, tasks.location FROM waiting
        JOIN tasks ON tasks.run = waiting.run AND tasks.location = waiting.location WHERE tasks.owner IS NULL
        ORDER BY tasks.at, tasks.run, tasks.location LIMIT $2 FOR UPDATE OF tasks SKIP LOCKED
    ) AS tasks
)
UPDATE tasks SET owner = $1 FROM taken JOIN runs ON runs.key = taken.run
WHERE tasks.run = taken.run AND tasks.location = taken.location
RETURNING taken.place, tasks.run, runs.id, runs.workflow, tasks.location, tasks.attempt, tasks.queue, tasks.activity,
    tasks.payload;

-- name: join_worker
-- Announce a worker.
INSERT INTO workers (id, lease_until, lease, session, session_begun, machine, pid, host, joined, about, state)
VALUES ($1, {clock} + $2, $2, $3, $4, $5, $6, $7, {clock}, $8, 'live')
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until, lease = excluded.lease, session = excluded.session,
    session_begun = excluded.session_begun, about = excluded.about, state = 'live';

-- name: renew_worker
-- Extend a lease unless the worker was declared dead, and say by which connection; returns the database's time.
UPDATE workers SET lease_until = {clock} + lease, session = $2, session_begun = $3, load = $4 WHERE id = $1 AND state = 'live' RETURNING {clock};

-- name: session
-- What names this connection, and the database's time.
SELECT pg_backend_pid(), coalesce((SELECT {begun} FROM pg_stat_activity WHERE pid = pg_backend_pid()), ''), {clock};

-- name: live_leases
-- Workers that were not declared dead: whether their lease has lapsed, and whether they are on this machine ($1).
SELECT id, pid, lease_until < {clock}, machine = $1 FROM workers WHERE state = 'live';

-- name: is_connected
-- Whether the connection by which a worker renewed its lease is still there.
SELECT 1 FROM workers JOIN pg_stat_activity ON pg_stat_activity.pid = workers.session
WHERE workers.id = $1 AND (backend_start IS NULL OR {begun} = workers.session_begun);

-- name: end_silent
-- End transactions that have a part in the commit lock ($2) and whose process has said nothing for so many microseconds ($1) while others
-- wait for it: it hangs. No timeout of the server does that, since a pipeline that is not finished counts as active.
SELECT pg_terminate_backend(pg_locks.pid) FROM pg_locks JOIN pg_stat_activity ON pg_stat_activity.pid = pg_locks.pid
WHERE pg_locks.relation = to_regclass($2) AND pg_locks.granted AND pg_stat_activity.usename = current_user
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND pg_locks.mode IN ('RowShareLock', 'ExclusiveLock')
AND EXISTS (SELECT 1 FROM pg_stat_activity AS other
            WHERE other.wait_event_type = 'Lock' AND pg_locks.pid = ANY (pg_blocking_pids(other.pid)))
AND pg_stat_activity.wait_event = 'ClientRead' AND pg_stat_activity.state_change < clock_timestamp() - $1 * interval '1 microsecond';

-- name: silence
-- For how many microseconds a worker has not renewed its lease.
SELECT greatest({clock} - lease_until + lease, 0) FROM workers WHERE id = $1;

-- name: declare_dead
-- Unless it renewed its lease since it was looked at ($2 = 1: known to have died, whatever its lease says).
UPDATE workers SET state = 'dead' WHERE id = $1 AND state = 'live' AND ($2 = 1 OR lease_until < {clock});

-- name: age_dead
-- Workers that died more than so many microseconds ago: they do not count as recent deaths.
UPDATE workers SET state = 'gone' WHERE state = 'dead' AND lease_until - lease < {clock} - $1;

-- name: clock
-- The database's time.
SELECT {clock};

-- name: live_workers
-- Workers that were not declared dead.
SELECT id FROM workers WHERE state = 'live';

-- name: limit_exclusive_wait
-- Wait for no lock longer than a second.
SET LOCAL lock_timeout = 1000;

-- name: limit_lock_waits
-- Wait for no lock longer than this: a transaction of another program may last for ever.
SET LOCAL lock_timeout = 3000;

-- name: lock_out_others
-- Let no other process commit.
LOCK TABLE commit_lock IN EXCLUSIVE MODE;

-- name: put_outbox
-- A message for the next worker that looks into the outbox.
INSERT INTO outbox (n, message) VALUES ($1, $2);

-- name: read_outbox
-- The oldest of them after a number.
SELECT n, message FROM outbox WHERE n > $1 ORDER BY n LIMIT $2;

-- name: drop_outbox
-- rows: n int
-- Those that were delivered.
DELETE FROM outbox WHERE n IN (SELECT n FROM {rows} AS gone);
