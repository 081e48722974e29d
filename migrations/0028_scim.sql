-- Users and groups that an identity provider keeps by SCIM. Package authz/identity owns the tables, authz the tokens.
-- +goose Up
-- A token of kind scim keeps the users of one issuer, who get its role. subject_from names the attribute by which the
-- issuer knows them; without it they are known when they first sign in.
ALTER TABLE service_tokens DROP CONSTRAINT service_tokens_kind_check;
ALTER TABLE service_tokens ADD CONSTRAINT service_tokens_kind_check CHECK (kind IN ('user', 'worker', 'scim')) NOT VALID;
ALTER TABLE service_tokens DROP CONSTRAINT service_tokens_check;
ALTER TABLE service_tokens ADD CONSTRAINT service_tokens_check CHECK ((kind IN ('user', 'scim')) = (role IS NOT NULL)) NOT VALID;
ALTER TABLE service_tokens ADD COLUMN issuer TEXT;
ALTER TABLE service_tokens ADD COLUMN subject_from TEXT CHECK (subject_from IN ('externalId', 'userName'));
ALTER TABLE service_tokens ADD CONSTRAINT service_tokens_issuer_check CHECK ((kind = 'scim') = (issuer IS NOT NULL)) NOT VALID;

-- Whether it was the provider, and not an admin, who disabled the user: the provider takes back only what it did.
ALTER TABLE users ADD COLUMN deprovisioned BOOLEAN NOT NULL DEFAULT false;

-- What the provider says of a user. It goes when the provider deletes the user, who stays behind disabled.
CREATE TABLE scim_users (
    user_id     UUID PRIMARY KEY,
    org_id      UUID NOT NULL,
    issuer      TEXT NOT NULL,
    user_name   TEXT NOT NULL,
    external_id TEXT, -- the provider's own name of the user; it need not be the subject
    profile     JSONB NOT NULL, -- displayName, name and emails, as the provider wrote them
    version     BIGINT NOT NULL DEFAULT 1,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, user_id),
    FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX idx_scim_users_name ON scim_users (org_id, issuer, lower(user_name));
CREATE INDEX idx_scim_users_external ON scim_users (org_id, issuer, external_id);
CREATE INDEX idx_scim_users_order ON scim_users (org_id, issuer, created_at, user_id);

CREATE TABLE scim_groups (
    id           UUID PRIMARY KEY,
    org_id       UUID NOT NULL REFERENCES orgs (id),
    issuer       TEXT NOT NULL,
    display_name TEXT NOT NULL,
    external_id  TEXT,
    version      BIGINT NOT NULL DEFAULT 1,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, id)
);
CREATE UNIQUE INDEX idx_scim_groups_name ON scim_groups (org_id, issuer, lower(display_name));
CREATE INDEX idx_scim_groups_order ON scim_groups (org_id, issuer, created_at, id);

CREATE TABLE scim_group_members (
    org_id   UUID NOT NULL,
    group_id UUID NOT NULL,
    user_id  UUID NOT NULL,
    PRIMARY KEY (group_id, user_id),
    FOREIGN KEY (org_id, group_id) REFERENCES scim_groups (org_id, id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, user_id) REFERENCES scim_users (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX idx_scim_group_members_user ON scim_group_members (user_id);

-- A rule of kind group gives roles to the members of groups of the issuer, as long as they are members.
ALTER TABLE trust_rules DROP CONSTRAINT trust_rules_kind_check;
ALTER TABLE trust_rules ADD CONSTRAINT trust_rules_kind_check CHECK (kind IN ('user', 'workload', 'group')) NOT VALID;

-- +goose StatementBegin
DO $$
DECLARE
    t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['scim_users', 'scim_groups', 'scim_group_members'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format($p$CREATE POLICY one_org ON %I TO dagctl_app
            USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
            WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)$p$, t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO dagctl_app', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
