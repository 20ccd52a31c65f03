-- Statements about many runs for faces: each looks at a bounded number of rows. The filter is put in place of {filter}.

-- name: created_from_key
-- When the first run at or above a key was created.
SELECT runs.created FROM runs WHERE runs.key >= $1 ORDER BY runs.key LIMIT 1;

-- name: read_heads
-- rows: id text
-- Runs by their ids.
SELECT {head} FROM {rows} AS wanted {join} runs ON runs.id = wanted.id LEFT JOIN results ON results.run = runs.key;

-- name: read_entries_after
-- The first facts of one run after a number.
SELECT {entry} FROM entries WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3;

-- name: read_entries_of_kind
-- The facts of one kind that a run has before a number.
SELECT {entry} FROM entries WHERE run = $1 AND seq < $2 AND kind = $3 ORDER BY seq;

-- name: read_newest_entries
-- The last facts of one run after a number, latest first.
SELECT {entry} FROM entries WHERE run = $1 AND seq > $2 ORDER BY seq DESC LIMIT $3;

-- name: read_workers
-- Every worker that is known, with the instants of the lease's clock.
SELECT id, state, host, pid, lease, lease_until - lease, joined, about, load FROM workers ORDER BY id;

-- name: last_acts
-- rows: target text, action text
-- The last row of the audit trail about each of some targets and acts.
SELECT {audit_row} FROM {rows} AS wanted
{join} audit ON audit.n = (SELECT max(last.n) FROM audit AS last WHERE last.target = wanted.target AND last.action = wanted.action);

-- name: key_holders
-- rows: activity text, key text
-- The runs that hold some keys, and since when.
SELECT idempotency_keys.activity, idempotency_keys.key, runs.id, idempotency_keys.expires FROM {rows} AS wanted
{join} idempotency_keys ON idempotency_keys.activity = wanted.activity AND idempotency_keys.key = wanted.key
{join} runs ON runs.key = idempotency_keys.run WHERE idempotency_keys.result IS NULL;

-- name: read_event_queues
-- rows: name text
-- How many events wait under names, and which runs were given the last: of names under which there was one.
SELECT wanted.name, coalesce(event_queues.pending, 0), runs.id, event_takers.at FROM {rows} AS wanted
LEFT JOIN event_queues ON event_queues.name = wanted.name LEFT JOIN event_takers ON event_takers.name = wanted.name
LEFT JOIN runs ON runs.key = event_takers.run WHERE event_queues.name IS NOT NULL OR event_takers.name IS NOT NULL;

-- name: waiting_since
-- rows: run int
-- Since when runs wait in receives.
SELECT event_waiters.run, min(event_waiters.since) FROM {rows} AS wanted
{join} event_waiters ON event_waiters.run = wanted.run GROUP BY event_waiters.run;

-- name: unread_names
-- rows: run int, most int
-- Names of what runs have not received, of the last so many rows of their inboxes, and where each is first.
SELECT inbox.run, inbox.name, min(inbox.n) FROM {rows} AS wanted
{join} inbox ON inbox.run = wanted.run AND inbox.n > (SELECT max(last.n) FROM inbox AS last WHERE last.run = wanted.run) - wanted.most
WHERE inbox.kind IN ('message', 'event', 'notice') GROUP BY inbox.run, inbox.name ORDER BY min(inbox.n);

-- name: attempts_given_up
-- rows: run text, step text
-- How often steps were tried that were given up, by their newest dead letters.
SELECT wanted.run, wanted.step, dead_letters.attempts FROM {rows} AS wanted
{join} dead_letters ON dead_letters.id = (SELECT max(given_up.id) FROM dead_letters AS given_up
    WHERE given_up.run = wanted.run AND given_up.step = wanted.step AND given_up.kind = 'work');

-- name: takers
-- rows: run int, queue text
-- The workers that took attempts of runs from queues.
SELECT wanted.run, wanted.queue, (SELECT tasks.owner FROM tasks
    WHERE tasks.run = wanted.run AND tasks.queue = wanted.queue AND tasks.owner > '' LIMIT 1) FROM {rows} AS wanted;

-- name: admissions_of
-- rows: run int
-- How runs wait for their turn or for a place.
SELECT run_places.run, run_places.lane, run_places.since, run_places.first FROM {rows} AS wanted
{join} run_places ON run_places.run = wanted.run WHERE run_places.held <= 0;
