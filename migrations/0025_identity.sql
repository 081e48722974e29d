-- People and pipelines: whom an org trusts, and who is signed in. Package authz/identity owns these tables.
-- +goose Up
-- A user without external_id is invited: the first sign-in at the issuer with the verified e-mail address takes the row.
-- One without role has what the trust rules give that matched the sign-in.
ALTER TABLE users ALTER COLUMN external_id DROP NOT NULL;
ALTER TABLE users ALTER COLUMN role DROP NOT NULL;
ALTER TABLE users ADD COLUMN grants TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE users ADD COLUMN created_by TEXT NOT NULL DEFAULT 'system';
-- Trust rules that matched the last sign-in; those that still exist count.
ALTER TABLE users ADD COLUMN rules UUID[] NOT NULL DEFAULT '{}';
ALTER TABLE users ADD COLUMN invited_until TIMESTAMPTZ; -- NULL: for good
ALTER TABLE users ADD COLUMN last_seen_at TIMESTAMPTZ;
CREATE UNIQUE INDEX idx_users_invited ON users (org_id, issuer, lower(email COLLATE "C")) WHERE external_id IS NULL;
CREATE INDEX idx_users_subject ON users (issuer, external_id);
CREATE INDEX idx_users_email ON users (issuer, lower(email COLLATE "C")) WHERE external_id IS NULL;

-- What an org gives whoever an issuer vouches for: to people when they sign in, or to the tokens of pipelines.
CREATE TABLE trust_rules (
    id         UUID PRIMARY KEY,
    org_id     UUID NOT NULL REFERENCES orgs (id),
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('user', 'workload')),
    issuer     TEXT NOT NULL,
    claims     JSONB NOT NULL, -- claim → the texts or patterns of which it must be one
    role       TEXT NOT NULL CHECK (role IN ('reader', 'proposer', 'writer', 'admin')),
    grants     TEXT[] NOT NULL DEFAULT '{}',
    org_roles  TEXT[] NOT NULL DEFAULT '{}',
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, name)
);
CREATE INDEX idx_trust_rules_issuer ON trust_rules (issuer, kind);

-- A session is a user who signed in, with a browser or the command line. It ends when it was not used for a while, at
-- ends_at in any case, and at once when it is revoked or the user disabled.
CREATE TABLE sessions (
    id           UUID PRIMARY KEY,
    org_id       UUID NOT NULL,
    user_id      UUID NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('browser', 'cli')),
    hash         BYTEA NOT NULL UNIQUE, -- SHA-256 of the secret in the cookie or the command line's file
    client       TEXT NOT NULL DEFAULT '', -- the browser or machine, as it calls itself
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    last_used_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    idle_seconds BIGINT NOT NULL, -- after which it ends unless it is used
    expires_at   TIMESTAMPTZ NOT NULL, -- when it ends unless it is used
    ends_at      TIMESTAMPTZ NOT NULL,
    revoked_at   TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id) ON DELETE CASCADE
);
CREATE INDEX idx_sessions_user ON sessions (user_id);
CREATE INDEX idx_sessions_ends ON sessions (ends_at);

-- A one-time link signs a user in where no provider does.
CREATE TABLE sign_in_links (
    id         UUID PRIMARY KEY,
    org_id     UUID NOT NULL,
    user_id    UUID NOT NULL,
    hash       BYTEA NOT NULL UNIQUE,
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at TIMESTAMPTZ NOT NULL,
    used_at    TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id) ON DELETE CASCADE
);
CREATE INDEX idx_sign_in_links_user ON sign_in_links (user_id);

-- The command line asks to be signed in, and a browser session approves. It belongs to no org until then.
CREATE TABLE cli_logins (
    id          UUID PRIMARY KEY,
    hash        BYTEA NOT NULL UNIQUE, -- of the device code, or of the code that the browser carries back
    user_code   TEXT UNIQUE, -- what a person types; NULL: the browser is on the same machine
    challenge   BYTEA, -- SHA-256 of the verifier that only the command line knows; NULL for a device
    client      TEXT NOT NULL DEFAULT '',
    session_id  UUID REFERENCES sessions (id) ON DELETE CASCADE, -- of the browser that approved
    denied      BOOLEAN NOT NULL DEFAULT false,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at  TIMESTAMPTZ NOT NULL,
    polled_at   TIMESTAMPTZ
);
CREATE INDEX idx_cli_logins_expires ON cli_logins (expires_at);
CREATE INDEX idx_cli_logins_session ON cli_logins (session_id);

-- +goose StatementBegin
DO $$
DECLARE
    t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['trust_rules', 'sessions', 'sign_in_links'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format($p$CREATE POLICY one_org ON %I TO dagctl_app
            USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
            WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)$p$, t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO dagctl_app', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
