-- Limits of steps in queues: the claim of a task takes its place; one that has to wait for it is in line.

-- The key under which an attempt uses the limit of its activity. While it is in line its owner is the empty text, so that
-- no worker takes it.
ALTER TABLE tasks ADD COLUMN limit_key TEXT NOT NULL DEFAULT '';

-- Whether what waits is such an attempt: then its turn is given to it by letting workers take it, and not by a row in the
-- inbox of its run.
ALTER TABLE limit_waiters ADD COLUMN task INTEGER NOT NULL DEFAULT 0;
CREATE INDEX limit_waiters_tasks ON limit_waiters (name, granted) WHERE task = 1 AND granted IS NOT NULL;
