-- Orgs, users, roles, tokens, secrets and the audit log. Package authz owns these tables.
-- +goose Up

-- Requests of users run as dagctl_app. The role owns no table, so row-level security applies to it. Roles belong to
-- the cluster, so the migration of another database may create it at the same moment.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'dagctl_app') THEN
        CREATE ROLE dagctl_app NOLOGIN NOINHERIT;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'dagctl_app', 'MEMBER') THEN
        EXECUTE format('GRANT dagctl_app TO %I', current_user);
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
-- +goose StatementEnd

CREATE TABLE orgs (
    id         UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    name       TEXT NOT NULL,
    slug       TEXT NOT NULL UNIQUE CHECK (slug ~ '^[a-z][a-z0-9_]{0,39}$'),
    settings   JSONB NOT NULL DEFAULT '{}', -- default_read_roles, file_roots
    created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- Other slices read orgs through these two functions: org_slug returns the name in the org's storage paths, and
-- org_default_read_roles returns the roles that may read its datasets where a dataset sets none.
CREATE FUNCTION org_slug(org UUID) RETURNS TEXT STABLE LANGUAGE sql AS 'SELECT slug FROM orgs WHERE id = $1';
-- +goose StatementBegin
CREATE FUNCTION org_default_read_roles(org UUID) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT coalesce(array_agg(role), '{}') FROM orgs, jsonb_array_elements_text(settings -> 'default_read_roles') AS role WHERE id = org
$$;
-- +goose StatementEnd

CREATE TABLE users (
    id           UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id       UUID NOT NULL REFERENCES orgs (id),
    issuer       TEXT NOT NULL,
    external_id  TEXT NOT NULL, -- the subject at the identity provider, unique only within its issuer
    email        TEXT,
    display_name TEXT,
    role         TEXT NOT NULL CHECK (role IN ('reader', 'writer', 'admin')),
    disabled_at  TIMESTAMPTZ,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, issuer, external_id),
    UNIQUE (org_id, id)
);

CREATE TABLE org_roles (
    id         UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id     UUID NOT NULL REFERENCES orgs (id),
    slug       TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, slug),
    UNIQUE (org_id, id)
);

CREATE TABLE org_role_memberships (
    org_id     UUID NOT NULL,
    role_id    UUID NOT NULL,
    user_id    UUID NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (role_id, user_id),
    FOREIGN KEY (org_id, role_id) REFERENCES org_roles (org_id, id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id) ON DELETE CASCADE
);
CREATE INDEX idx_org_role_memberships_user ON org_role_memberships (user_id);

-- A token is either of kind user, with a role, or of kind worker, with what it may claim.
CREATE TABLE service_tokens (
    id           UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id       UUID NOT NULL REFERENCES orgs (id),
    name         TEXT NOT NULL,
    hash         BYTEA NOT NULL UNIQUE, -- SHA-256 of the secret, which is shown once and never stored
    kind         TEXT NOT NULL CHECK (kind IN ('user', 'worker')),
    role         TEXT CHECK (role IN ('reader', 'writer', 'admin')),
    runtimes     TEXT[],
    operators    TEXT[],
    orgs         UUID[],
    created_by   TEXT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at   TIMESTAMPTZ NOT NULL,
    last_used_at TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ,
    UNIQUE (org_id, name),
    CHECK ((kind = 'user') = (role IS NOT NULL))
);
-- worker_token_revoked reports whether a worker token, named as ORG/NAME, was revoked. A token may work for other orgs
-- than its own, so this must see every org's tokens.
-- +goose StatementBegin
CREATE FUNCTION worker_token_revoked(token TEXT) RETURNS BOOLEAN
STABLE STRICT SECURITY DEFINER SET search_path FROM CURRENT LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM service_tokens t
        WHERE t.org_id = NULLIF(split_part(token, '/', 1), '')::uuid AND t.name = split_part(token, '/', 2)
          AND t.revoked_at IS NOT NULL)
$$;
-- +goose StatementEnd

CREATE TABLE secrets (
    id         UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id     UUID NOT NULL REFERENCES orgs (id),
    name       TEXT NOT NULL,
    ciphertext BYTEA NOT NULL,
    key_id     TEXT NOT NULL,
    jobs       TEXT[] NOT NULL DEFAULT '{}', -- the DAG/JOBs that may use it
    hosts      TEXT[] NOT NULL DEFAULT '{}',
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, name)
);

CREATE TABLE audit_log (
    id         UUID PRIMARY KEY,
    org_id     UUID NOT NULL REFERENCES orgs (id),
    actor      TEXT NOT NULL, -- user:ID, token:NAME, system
    action     TEXT NOT NULL, -- dag.deploy, task.enqueue, ...
    object     TEXT NOT NULL,
    detail     JSONB NOT NULL DEFAULT '{}',
    request_id TEXT NOT NULL DEFAULT '',
    at         TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX idx_audit_log_org ON audit_log (org_id, at DESC);
