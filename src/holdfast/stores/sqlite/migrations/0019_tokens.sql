-- Tokens by which programs and browsers are known to the HTTP API: of each the SHA-256, never itself.
CREATE TABLE tokens (
    id      TEXT NOT NULL PRIMARY KEY,
    name    TEXT NOT NULL,
    role    TEXT NOT NULL,
    digest  TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER
) WITHOUT ROWID;

-- What processes on this database sign for each other, as selections of runs: one secret for each purpose.
CREATE TABLE secrets (
    purpose TEXT NOT NULL PRIMARY KEY,
    secret  TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO secrets (purpose, secret) VALUES ('selections', lower(hex(randomblob(32))));
