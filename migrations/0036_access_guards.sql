-- What keeps changes of access from doing harm unseen. Package authz/identity owns the functions, with tables of authz.
-- +goose Up

-- rules_with_org_role returns the names of the rules that give an org role, which is written role:SLUG.
CREATE FUNCTION rules_with_org_role(org UUID, given TEXT) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY(SELECT name FROM trust_rules WHERE org_id = org AND given = ANY(org_roles) ORDER BY name)
$$;

-- admins_who_sign_in returns the users of an org who are admins now and can sign in: those who have done so at a
-- provider, and those without one who are signed in or have a link.
CREATE FUNCTION admins_who_sign_in(org UUID) RETURNS SETOF UUID STABLE LANGUAGE sql AS $$
    SELECT u.id FROM users u
    WHERE u.org_id = org AND u.disabled_at IS NULL
      AND (u.role = 'admin' OR EXISTS (SELECT FROM rules_of_user(org, u.id) r WHERE r.role = 'admin'))
      AND CASE WHEN u.issuer <> 'local' THEN u.external_id IS NOT NULL AND u.last_seen_at IS NOT NULL
          ELSE EXISTS (SELECT FROM sessions s WHERE s.user_id = u.id AND s.revoked_at IS NULL AND s.expires_at > now())
            OR EXISTS (SELECT FROM sign_in_links l WHERE l.user_id = u.id AND l.used_at IS NULL AND l.expires_at > now())
          END
$$;

-- still_admin reports whether the actors of a request that was admitted are an admin yet. Rows of tokens stay, so that
-- an actor who is no user or rule and has no row is none that could have lost its rights.
CREATE FUNCTION still_admin(org UUID, actors TEXT[]) RETURNS BOOLEAN STABLE LANGUAGE sql AS $$
    SELECT CASE
        WHEN actors[1] LIKE 'user:%' THEN EXISTS (
            SELECT FROM users u
            WHERE u.org_id = org AND 'user:' || u.id = ANY(actors) AND u.disabled_at IS NULL
              AND (u.role = 'admin' OR EXISTS (SELECT FROM rules_of_user(org, u.id) r WHERE r.role = 'admin')))
        WHEN actors[1] LIKE 'workload:%' THEN EXISTS (
            SELECT FROM trust_rules r
            WHERE r.org_id = org AND r.kind = 'workload' AND 'workload:' || r.name = ANY(actors) AND r.role = 'admin')
        ELSE NOT EXISTS (
            SELECT FROM service_tokens t
            WHERE t.org_id = org AND 'token:' || t.name = ANY(actors)
              AND (t.role IS DISTINCT FROM 'admin' OR t.revoked_at IS NOT NULL OR t.expires_at <= now()))
    END
$$;
