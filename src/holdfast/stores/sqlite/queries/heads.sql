-- Searches of runs: a part of one index, and the runs in it. The conditions are put in place of {filter}.

-- name: list_heads
-- Runs between two keys, newest first, without payloads.
SELECT {head} FROM runs LEFT JOIN results ON results.run = runs.key
WHERE {filter} ORDER BY runs.key DESC LIMIT $1;

-- name: list_tagged_heads
-- The same in the order of the index of an attribute.
SELECT {head} FROM attributes AS tagged CROSS JOIN runs ON runs.key = tagged.run LEFT JOIN results ON results.run = runs.key
WHERE {filter} ORDER BY tagged.run DESC LIMIT $1;

-- name: count_heads
-- How many runs between two keys meet conditions, up to a number.
SELECT count(*) FROM (SELECT 1 FROM runs WHERE {filter} LIMIT $1) AS found;

-- name: count_tagged_heads
-- The same by the index of an attribute.
SELECT count(*) FROM
    (SELECT 1 FROM attributes AS tagged CROSS JOIN runs ON runs.key = tagged.run WHERE {filter} LIMIT $1) AS found;

-- name: ends_heads
-- When runs between two keys ended, and how, newest first.
SELECT runs.ended, runs.status FROM runs WHERE {filter} ORDER BY runs.key DESC LIMIT $1;

-- name: ends_tagged_heads
-- The same in the order of the index of an attribute.
SELECT runs.ended, runs.status FROM attributes AS tagged CROSS JOIN runs ON runs.key = tagged.run
WHERE {filter} ORDER BY tagged.run DESC LIMIT $1;

-- name: probe_runs
-- How many rows an index has for a condition, up to a number.
SELECT count(*) FROM (SELECT 1 FROM runs WHERE {filter} LIMIT $1) AS found;

-- name: probe_attributes
-- The same of an attribute.
SELECT count(*) FROM (SELECT 1 FROM attributes AS tagged WHERE {filter} LIMIT $1) AS found;

-- name: reach_runs
-- The key so many rows down an index, if there are as many.
SELECT runs.key FROM runs WHERE {filter} ORDER BY runs.key DESC LIMIT 1 OFFSET $1;

-- name: reach_attributes
-- The same of an attribute.
SELECT tagged.run FROM attributes AS tagged WHERE {filter} ORDER BY tagged.run DESC LIMIT 1 OFFSET $1;

-- name: overdue_keys
-- Runs that want a worker since an instant or longer: jumps from one worker and priority to the next in the index of the
-- open ones, so that what sleeps is not looked at. The last of `owners` is that of runs that no worker has.
WITH RECURSIVE owners (owner) AS (
    SELECT (SELECT owner FROM runs WHERE ended IS NULL AND owner > '' ORDER BY owner LIMIT 1)
    UNION ALL
    SELECT (SELECT runs.owner FROM runs WHERE runs.ended IS NULL AND runs.owner > owners.owner
            ORDER BY runs.owner LIMIT 1) FROM owners WHERE owners.owner IS NOT NULL
), levels (owner, priority) AS (
    SELECT owner, (SELECT max(priority) FROM runs WHERE runs.ended IS NULL AND runs.owner IS owners.owner) FROM owners
    UNION ALL
    SELECT owner, (SELECT max(priority) FROM runs WHERE runs.ended IS NULL AND runs.owner IS levels.owner
                   AND runs.priority < levels.priority) FROM levels WHERE levels.priority IS NOT NULL
)
SELECT runs.key FROM levels CROSS JOIN runs ON runs.ended IS NULL AND runs.owner IS levels.owner
    AND runs.priority = levels.priority AND runs.due <= $1 LIMIT $2;
