-- Who may read datasets that do not exist yet, by patterns of their names. Package registry owns read_role_patterns.
-- +goose Up
CREATE TABLE read_role_patterns (
    org_id     UUID NOT NULL REFERENCES orgs (id),
    pattern    TEXT NOT NULL, -- * stands for any text
    read_roles TEXT[] NOT NULL, -- empty: every reader of the org
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, pattern)
);
ALTER TABLE read_role_patterns ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON read_role_patterns TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON read_role_patterns TO dagctl_app;

-- fits reports whether a name fits a pattern.
CREATE FUNCTION fits(name TEXT, pattern TEXT) RETURNS BOOLEAN IMMUTABLE LANGUAGE sql AS $$
    SELECT name LIKE replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
$$;

-- read_roles_of_pattern returns the read roles of the longest pattern that a name fits; NULL: there is none.
CREATE FUNCTION read_roles_of_pattern(org UUID, name TEXT) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT p.read_roles FROM read_role_patterns p WHERE p.org_id = org AND fits(name, p.pattern)
    ORDER BY length(p.pattern) DESC, p.pattern LIMIT 1
$$;

-- patterns_with_read_role returns the patterns that name an org role, which is written role:SLUG.
CREATE FUNCTION patterns_with_read_role(org UUID, role TEXT) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY(SELECT pattern FROM read_role_patterns WHERE org_id = org AND role = ANY(read_roles) ORDER BY pattern)
$$;
