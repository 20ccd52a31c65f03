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
