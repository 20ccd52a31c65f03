-- Tokens by which programs and browsers are known to the HTTP API: of each the SHA-256, never itself.
CREATE TABLE tokens (
    id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name    TEXT COLLATE "C" NOT NULL,
    role    TEXT COLLATE "C" NOT NULL,
    digest  TEXT COLLATE "C" NOT NULL,
    created BIGINT NOT NULL,
    expires BIGINT,
    revoked BIGINT
);

-- What processes on this database sign for each other, as selections of runs: one secret for each purpose.
CREATE TABLE secrets (
    purpose TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    secret  TEXT COLLATE "C" NOT NULL
);
INSERT INTO secrets (purpose, secret) VALUES ('selections', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
