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

-- name: probe_driven
-- How many rows an index has for a condition, up to a number.
SELECT count(*) FROM ({filter} LIMIT $1) AS found;

-- name: reach_driven
-- The key so many rows down an index, if there are as many.
SELECT found.key FROM ({filter} OFFSET $1 LIMIT 1) AS found;
