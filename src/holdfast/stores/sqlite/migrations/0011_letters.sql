-- Dead letters tell what the step was called with and how often it failed; a failed run, where.

ALTER TABLE dead_letters ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;      -- attempts that threw or timed out
ALTER TABLE dead_letters ADD COLUMN arguments TEXT;                           -- of the step: a JSON object by name
ALTER TABLE dead_letters ADD COLUMN compensation INTEGER NOT NULL DEFAULT 0;  -- whether the step was to undo another
ALTER TABLE dead_letters ADD COLUMN idempotent INTEGER NOT NULL DEFAULT 0;    -- whether its activity says so
ALTER TABLE results ADD COLUMN failed_step TEXT;  -- the path of the call whose failure ended the run

UPDATE dead_letters SET compensation = 1 WHERE kind = 'work' AND step LIKE 'undo#%';
