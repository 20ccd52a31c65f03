-- Hooks run after it is decided how a run ends, and before it is told as ended.

-- completed, failed or cancelled: how the run ends, while its hook for that is called; before that NULL, or 'open' if a
-- hook is to be called even for a run that is cancelled before it began.
ALTER TABLE runs ADD COLUMN conclusion TEXT COLLATE "C";

-- A run whose end is decided has given its unique key back.
DROP INDEX runs_unique;
CREATE UNIQUE INDEX runs_unique ON runs (workflow, unique_key)
    WHERE unique_key IS NOT NULL AND ended IS NULL AND (conclusion IS NULL OR conclusion = 'open');
