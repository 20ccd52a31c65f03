-- Searches of runs: the keys in a part of an index, put in place of {filter}, and then each run by its key alone.

-- name: list_driven
-- The newest runs of those, without payloads.
SELECT {head} FROM (SELECT driven.key AS key FROM {filter} ORDER BY driven.key DESC LIMIT $1) AS chosen
CROSS JOIN LATERAL (SELECT * FROM runs WHERE runs.key = chosen.key OFFSET 0) AS runs
LEFT JOIN LATERAL (SELECT * FROM results WHERE results.run = chosen.key OFFSET 0) AS results ON TRUE
ORDER BY chosen.key DESC;

-- name: count_driven
-- How many there are, up to a number.
SELECT count(*) FROM (SELECT 1 FROM {filter} LIMIT $1) AS found;

-- name: ends_driven
-- When the newest runs of those ended, and how.
SELECT runs.ended, runs.status FROM (SELECT driven.key AS key FROM {filter} ORDER BY driven.key DESC LIMIT $1) AS chosen
CROSS JOIN LATERAL (SELECT * FROM runs WHERE runs.key = chosen.key OFFSET 0) AS runs
ORDER BY chosen.key DESC;

-- name: probe_driven
-- How many rows an index has for a condition, up to a number.
SELECT count(*) FROM ({filter} LIMIT $1) AS found;

-- name: reach_driven
-- The key so many rows down an index, if there are as many.
SELECT found.key FROM ({filter} OFFSET $1 LIMIT 1) AS found;

-- name: overdue_keys
-- Runs that want a worker since an instant or longer: jumps from one workflow and priority, or worker, to the next in the
-- indexes of the open ones, so that what sleeps is not looked at.
WITH RECURSIVE levels (workflow, priority) AS (
    (SELECT runs.workflow, runs.priority FROM runs WHERE {due} ORDER BY runs.workflow, runs.priority LIMIT 1)
    UNION ALL
    SELECT next.workflow, next.priority FROM levels CROSS JOIN LATERAL (
        SELECT runs.workflow, runs.priority FROM runs
        WHERE (runs.workflow, runs.priority) > (levels.workflow, levels.priority) AND {due}
        ORDER BY runs.workflow, runs.priority LIMIT 1
    ) AS next
), owners (owner) AS (
    (SELECT runs.owner FROM runs WHERE runs.ended IS NULL AND runs.owner IS NOT NULL ORDER BY runs.owner LIMIT 1)
    UNION ALL
    SELECT next.owner FROM owners CROSS JOIN LATERAL (
        SELECT runs.owner FROM runs WHERE runs.ended IS NULL AND runs.owner > owners.owner ORDER BY runs.owner LIMIT 1
    ) AS next
)
SELECT found.key FROM levels CROSS JOIN LATERAL (
    SELECT runs.key FROM runs
    WHERE runs.workflow = levels.workflow AND runs.priority = levels.priority AND runs.due <= $1 AND {due}
    ORDER BY runs.due LIMIT $2
) AS found
UNION ALL
SELECT found.key FROM owners CROSS JOIN LATERAL (
    SELECT runs.key FROM runs
    WHERE runs.ended IS NULL AND runs.owner = owners.owner AND runs.due <= $1 AND runs.claims = 0
    ORDER BY runs.due LIMIT $2
) AS found
UNION ALL
(SELECT runs.key FROM runs
 WHERE runs.ended IS NULL AND runs.due IS NOT NULL AND runs.due <= $1 AND runs.claims > 0 ORDER BY runs.due LIMIT $2)
LIMIT $2;
