-- The hot path of SQLite, and what only it says in its own way.

-- name: fence
-- Whether a turn may be written at all.
SELECT 1 FROM runs WHERE key = ? AND epoch = ? AND ended IS NULL;

-- name: append_one
-- One fact of a run that is still ours, as a transaction of its own.
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data)
SELECT ?1, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL);

-- name: append_two
-- The same for two facts: the end of a step and the beginning of the next. (VALUES in a subquery takes three times as long.)
INSERT OR IGNORE INTO entries (run, location, seq, kind, at, data)
SELECT ?1, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL)
UNION ALL
SELECT ?1, ?8, ?9, ?10, ?11, ?12 WHERE EXISTS (SELECT 1 FROM runs WHERE key = ?1 AND epoch = ?2 AND ended IS NULL);

-- name: last_key
-- The highest key ever given out.
SELECT seq FROM sqlite_sequence WHERE name = 'runs';

-- name: insert_event
-- An event that waits.
INSERT INTO events (name, id, payload, at) VALUES (?, ?, ?, ?) RETURNING n;
