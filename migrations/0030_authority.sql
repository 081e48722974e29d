-- On whose authority a version runs. Package authz owns the functions.
-- +goose Up
-- Who last made it run, and answers for what its jobs read: actors such as user:ID and token:NAME, or workload:RULE for
-- each rule that admitted a pipeline. NULL: a version from before this was written, which nobody's rights end.
ALTER TABLE dag_versions ADD COLUMN authority TEXT[];

-- Tasks set aside because that authority is lost.
CREATE INDEX idx_waiting_authority ON waiting (origin_job_id) WHERE reason = 'paused' AND blocker = 'authority';

-- rules_of_user returns what trust rules give a user: those that matched the last sign-in, and those of the user's
-- groups.
CREATE FUNCTION rules_of_user(org UUID, who UUID) RETURNS TABLE (role TEXT, grants TEXT[], org_roles TEXT[])
STABLE LANGUAGE sql AS $$
    SELECT r.role, r.grants, r.org_roles
    FROM users u JOIN trust_rules r ON r.id = ANY(u.rules) AND r.org_id = u.org_id
    WHERE u.org_id = org AND u.id = who
    UNION ALL
    SELECT r.role, r.grants, r.org_roles
    FROM scim_group_members m
    JOIN scim_groups g ON g.id = m.group_id
    JOIN trust_rules r ON r.org_id = m.org_id AND r.kind = 'group' AND r.issuer = g.issuer AND r.claims -> 'group' ? g.display_name
    WHERE m.org_id = org AND m.user_id = who
$$;

-- org_roles_of_user returns the org roles of a user, each as role:SLUG.
CREATE FUNCTION org_roles_of_user(org UUID, who UUID) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY(
        SELECT 'role:' || r.slug FROM org_role_memberships m JOIN org_roles r ON r.id = m.role_id
        WHERE m.org_id = org AND m.user_id = who
        UNION
        SELECT unnest(g.org_roles) FROM rules_of_user(org, who) g)
$$;

-- rights_of returns the platform roles and org roles that some actors have now. Whether they may still sign in does not
-- count: a disabled user, or a token past its time, has the roles that its row says until somebody takes them.
CREATE FUNCTION rights_of(org UUID, actors TEXT[]) RETURNS TABLE (role TEXT, org_roles TEXT[]) STABLE LANGUAGE sql AS $$
    SELECT t.role, t.org_roles FROM service_tokens t
    WHERE t.org_id = org AND t.kind = 'user' AND 'token:' || t.name = ANY(actors)
    UNION ALL
    SELECT r.role, r.org_roles FROM trust_rules r
    WHERE r.org_id = org AND r.kind = 'workload' AND 'workload:' || r.name = ANY(actors)
    UNION ALL
    SELECT u.role, org_roles_of_user(org, u.id) FROM users u WHERE u.org_id = org AND 'user:' || u.id = ANY(actors)
    UNION ALL
    SELECT g.role, g.org_roles FROM users u CROSS JOIN LATERAL rules_of_user(org, u.id) g
    WHERE u.org_id = org AND 'user:' || u.id = ANY(actors)
    UNION ALL
    SELECT 'admin', '{}' WHERE actors && ARRAY['dev', 'system']
$$;
