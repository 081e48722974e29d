-- What an org may use, and what it uses. Package authz owns these tables.
-- +goose Up

CREATE TABLE org_quotas (
    org_id UUID NOT NULL REFERENCES orgs (id),
    quota  TEXT NOT NULL CHECK (quota IN
        ('requests_per_minute', 'queued_tasks', 'uploads_per_day', 'storage_bytes', 'engines')),
    most   BIGINT NOT NULL CHECK (most >= 0 AND (most > 0 OR quota <> 'engines')),
    PRIMARY KEY (org_id, quota)
);

CREATE TABLE org_usage (
    org_id UUID NOT NULL REFERENCES orgs (id),
    quota  TEXT NOT NULL,
    holder TEXT NOT NULL DEFAULT '', -- of engines: the server
    used   BIGINT NOT NULL,
    since  TIMESTAMPTZ NOT NULL, -- when the minute or day that is counted began; otherwise when it was measured
    PRIMARY KEY (org_id, quota, holder)
);

-- What each org queued is counted by org. The ready set has such an index already.
CREATE INDEX idx_waiting_org ON waiting (org_id);

-- take_quota takes from an org's quota, under the lock of its usage: as much as was asked for or nothing, or with part
-- also less. What is counted by the minute or day is counted without a quota too. Requests may not write these tables,
-- so it runs as their owner, and takes for a request from the request's org only.
-- +goose StatementBegin
CREATE FUNCTION take_quota(org UUID, name TEXT, asked BIGINT, part BOOLEAN, at TIMESTAMPTZ,
    OUT taken BIGINT, OUT stands BIGINT, OUT bound BIGINT)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    began TIMESTAMPTZ := CASE name
        WHEN 'requests_per_minute' THEN date_trunc('minute', at)
        WHEN 'uploads_per_day' THEN date_trunc('day', at, 'UTC') END;
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'USAGE')
        AND org IS DISTINCT FROM NULLIF(current_setting('dagctl.org', true), '')::uuid THEN
        RAISE insufficient_privilege USING MESSAGE = 'a request takes from the quotas of its own org only';
    END IF;

    SELECT q.most INTO bound FROM org_quotas q WHERE q.org_id = org AND q.quota = name;
    IF bound IS NULL AND began IS NULL THEN
        taken := asked;
        RETURN;
    END IF;

    INSERT INTO org_usage (org_id, quota, used, since) VALUES (org, name, 0, coalesce(began, '-infinity'))
    ON CONFLICT DO NOTHING;
    SELECT CASE WHEN u.since < began THEN 0 ELSE u.used END INTO stands FROM org_usage u
    WHERE u.org_id = org AND u.quota = name AND u.holder = '' FOR UPDATE;

    taken := asked;
    IF stands + asked > bound THEN
        taken := CASE WHEN part THEN greatest(bound - stands, 0) ELSE 0 END;
    END IF;
    IF taken > 0 THEN
        stands := stands + taken;
        UPDATE org_usage u SET used = stands, since = coalesce(began, u.since)
        WHERE u.org_id = org AND u.quota = name AND u.holder = '';
    END IF;
END
$$;
-- +goose StatementEnd

ALTER TABLE org_quotas ENABLE ROW LEVEL SECURITY;
ALTER TABLE org_usage ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON org_quotas TO dagctl_app USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
CREATE POLICY one_org ON org_usage TO dagctl_app USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT ON org_quotas, org_usage TO dagctl_app;
