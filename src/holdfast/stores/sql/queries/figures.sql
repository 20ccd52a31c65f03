-- Statements about figures: how often things ended and how long they took, by minute and by hour.

-- name: add_figures
-- rows: what text, span int, start int, workflow text, step text, outcome text, n int, total int, b0 int, b1 int, b2 int, b3 int, b4 int, b5 int, b6 int, b7 int, b8 int, b9 int, b10 int, b11 int, b12 int, b13 int
-- Add to what other workers, or this one before, counted in the same minute or hour.
INSERT INTO figures ({columns}) SELECT {columns} FROM {rows} AS new WHERE TRUE
ON CONFLICT (what, span, start, workflow, step, outcome) DO UPDATE SET {figure_additions};

-- name: figures_edge
-- When the newest minute or hour began that lies beyond so many rows.
SELECT start FROM figures WHERE what = $1 AND span = $2 AND start >= $3 AND start < $4
ORDER BY start DESC LIMIT 1 OFFSET $5;

-- name: sum_figures_by_step
-- Attempts, by workflow, step and outcome.
SELECT 0, workflow, step, outcome, {figure_sums} FROM figures
WHERE what = 'step' AND span = $1 AND start >= $2 AND start < $3 AND {filter}
GROUP BY workflow, step, outcome ORDER BY workflow, step, outcome;

-- name: sum_figures_by_workflow
-- Runs, by workflow and outcome.
SELECT 0, workflow, '', outcome, {figure_sums} FROM figures
WHERE what = 'run' AND span = $1 AND start >= $2 AND start < $3 AND {filter}
GROUP BY workflow, outcome ORDER BY workflow, outcome;

-- name: sum_figures_by_time
-- Runs, by slots of time and outcome.
SELECT start / $4 * $4, '', '', outcome, {figure_sums} FROM figures
WHERE what = 'run' AND span = $1 AND start >= $2 AND start < $3 AND {filter}
GROUP BY 1, 4 ORDER BY 1, 4;

-- name: purge_figures
-- Minutes or hours that are over for long enough.
DELETE FROM figures WHERE (what, span, start, workflow, step, outcome) IN (
    SELECT what, span, start, workflow, step, outcome FROM figures
    WHERE what = $1 AND span = $2 AND start < $3 ORDER BY start LIMIT $4);
