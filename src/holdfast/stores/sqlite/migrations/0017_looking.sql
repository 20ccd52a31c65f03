-- Runs and rows of the audit trail that an import brought: they are older than their place says. Their keys lie between
-- first and last, and they were added between oldest and newest; `ordered`: in the order of their keys. at: the import.
CREATE TABLE imported_blocks (
    what    TEXT NOT NULL,    -- runs or audit
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    oldest  INTEGER NOT NULL,
    newest  INTEGER NOT NULL,
    ordered INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (what, first)
) WITHOUT ROWID;

-- Where something was imported before this was noted, nothing is known of the order.
INSERT INTO imported_blocks (what, first, last, oldest, newest, ordered, at)
SELECT 'runs', min(key), max(key), min(created), max(created), 0, max(created) FROM runs
WHERE EXISTS (SELECT 1 FROM audit WHERE action = 'import') HAVING count(*) > 0;
INSERT INTO imported_blocks (what, first, last, oldest, newest, ordered, at)
SELECT 'audit', min(n), max(n), min(at), max(at), 0, max(at) FROM audit
WHERE EXISTS (SELECT 1 FROM audit WHERE action = 'import') HAVING count(*) > 0;

-- What a worker serves, told when it joins, and what it carries, told with its lease: JSON objects.
ALTER TABLE workers ADD COLUMN about TEXT NOT NULL DEFAULT '{}';
ALTER TABLE workers ADD COLUMN load TEXT NOT NULL DEFAULT '{}';
