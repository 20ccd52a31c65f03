-- name: insert_token
-- A token; one with this id stays as it is.
INSERT INTO tokens ({token_columns}) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING;

-- name: revoke_token
-- The end of a token that was not revoked before.
UPDATE tokens SET revoked = $2 WHERE id = $1 AND revoked IS NULL;

-- name: read_tokens
-- Every token, newest first.
SELECT {token} FROM tokens ORDER BY created DESC, id;

-- name: read_token
-- One of them.
SELECT {token} FROM tokens WHERE id = $1;

-- name: read_secret
-- What is signed with, for a purpose.
SELECT secret FROM secrets WHERE purpose = $1;
