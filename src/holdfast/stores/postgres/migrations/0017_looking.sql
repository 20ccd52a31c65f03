-- Runs and rows of the audit trail that an import brought: they are older than their place says. Their keys lie between
-- first and last, and they were added between oldest and newest; `ordered`: in the order of their keys. at: the import.
CREATE TABLE imported_blocks (
    what    TEXT COLLATE "C" NOT NULL,    -- runs or audit
    first   BIGINT NOT NULL,
    last    BIGINT NOT NULL,
    oldest  BIGINT NOT NULL,
    newest  BIGINT NOT NULL,
    ordered BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (what, first)
);

-- Where something was imported before this was noted, nothing is known of the order.
INSERT INTO imported_blocks (what, first, last, oldest, newest, ordered, at)
SELECT 'runs', min(key), max(key), min(created), max(created), 0, max(created) FROM runs
WHERE EXISTS (SELECT 1 FROM audit WHERE action = 'import') HAVING count(*) > 0;
INSERT INTO imported_blocks (what, first, last, oldest, newest, ordered, at)
SELECT 'audit', min(n), max(n), min(at), max(at), 0, max(at) FROM audit
WHERE EXISTS (SELECT 1 FROM audit WHERE action = 'import') HAVING count(*) > 0;

-- What a worker serves, told when it joins, and what it carries, told with its lease: JSON objects.
ALTER TABLE workers ADD COLUMN about TEXT COLLATE "C" NOT NULL DEFAULT '{}';
ALTER TABLE workers ADD COLUMN load TEXT COLLATE "C" NOT NULL DEFAULT '{}';
