-- What keeps changes of access from doing harm unseen. Package authz/identity owns the functions, with tables of authz.
-- +goose Up

-- rules_with_org_role returns the names of the rules that give an org role, which is written role:SLUG.
CREATE FUNCTION rules_with_org_role(org UUID, given TEXT) RETURNS TEXT[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY(SELECT name FROM trust_rules WHERE org_id = org AND given = ANY(org_roles) ORDER BY name)
$$;
