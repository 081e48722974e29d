package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// RuleKind says what a rule is about.
type RuleKind string

const (
	ForUsers     RuleKind = "user"     // people who sign in at the issuer
	ForWorkloads RuleKind = "workload" // programs that present a token of the issuer
	ForGroups    RuleKind = "group"    // the members of groups that the issuer's provider keeps by SCIM
)

// Rule is what an org gives those for whom an issuer vouches.
type Rule struct {
	Name      string        `json:"name"`
	Kind      RuleKind      `json:"kind" enum:"user,workload,group"`
	Issuer    string        `json:"issuer"`
	Audience  string        `json:"audience,omitempty" doc:"For workloads: what their tokens must be made for"`
	Claims    Conditions    `json:"claims" doc:"Claim → texts or patterns, of which it must be one"`
	Role      authz.Role    `json:"role" enum:"reader,proposer,writer,admin"`
	Grants    []authz.Grant `json:"grants,omitempty"`
	OrgRoles  []string      `json:"org_roles,omitempty"`
	CreatedBy string        `json:"created_by"`
	CreatedAt time.Time     `json:"created_at"`
}

// NewRule describes a rule to create.
type NewRule struct {
	Name     string        `json:"name" maxLength:"63" example:"deploy-from-main"`
	Kind     RuleKind      `json:"kind" enum:"user,workload,group"`
	Issuer   string        `json:"issuer" maxLength:"500" example:"https://token.actions.githubusercontent.com" doc:"Exactly as its tokens have it"`
	Claims   Conditions    `json:"claims" doc:"Claim → texts or patterns, of which it must be one. In a pattern, * stands for any text without / and :. For groups: group → their names, and nothing else"`
	Role     authz.Role    `json:"role" enum:"reader,proposer,writer,admin"`
	Grants   []authz.Grant `json:"grants,omitempty" maxItems:"100" doc:"Roles on some DAGs besides"`
	OrgRoles []string      `json:"org_roles,omitempty" maxItems:"100" doc:"Visibility groups, each as role:SLUG"`
}

var goodRule = late.Pattern(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// shared are issuers that sign for everybody's workloads. A name there can be given up and taken by somebody else, an
// id cannot, so a rule needs one of these claims, each without a pattern.
var shared = map[string][]string{
	gitHub:                        {"repository_id", "repository_owner_id"},
	"https://gitlab.com":          {"project_id", "namespace_id"},
	"https://accounts.google.com": {"sub"},
}

const gitHub = "https://token.actions.githubusercontent.com"

// isGitHub reports whether an issuer is GitHub's, for everybody or for an enterprise.
func isGitHub(issuer string) bool { return issuer == gitHub || strings.HasPrefix(issuer, gitHub+"/") }

// check returns an error that lists everything that is wrong.
func (n NewRule) check() error {
	var problems []fault.Problem
	add := func(field, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
	}
	if !goodRule.MatchString(n.Name) {
		add("name", "%q is not a rule's name: use up to 63 of a-z, 0-9, _, . and -", n.Name)
	}
	if n.Kind != ForUsers && n.Kind != ForWorkloads && n.Kind != ForGroups {
		add("kind", "%q is no kind of rule: use user, workload or group", n.Kind)
	}
	if n.Kind == ForGroups && !n.Claims.nameGroups() {
		add("claims", "a rule of kind group has the claim group alone, with the names of groups and no patterns")
	}
	if !authz.SafeAddress(n.Issuer) {
		add("issuer", "%q is not the https address of an issuer", n.Issuer)
	}

	problems = append(problems, n.Claims.check()...)
	ids, many := shared[n.Issuer]
	if isGitHub(n.Issuer) { // an enterprise has an issuer of its own, for all its repositories
		ids, many = shared[gitHub], true
	}
	if many && n.Kind == ForWorkloads && !slices.ContainsFunc(ids, func(id string) bool {
		return len(n.Claims[id]) > 0 && !slices.ContainsFunc(n.Claims[id], func(text string) bool {
			return strings.Contains(text, "*")
		})
	}) {
		add("claims", "%s signs for everybody: name the %s, which nobody else can get", n.Issuer,
			strings.Join(ids, " or "))
	}
	problems = append(problems, authz.CheckRoles(n.Role, n.Grants, n.OrgRoles)...)
	if len(problems) == 0 {
		return nil
	}
	return &fault.Error{Kind: fault.Invalid, Message: "the rule cannot be made: " + problems[0].Message,
		Problems: problems}
}

const ruleColumns = `name, kind, issuer, claims, role, grants, org_roles, created_by, created_at`

func (id *Identity) scanRule(org string) pgx.RowToFunc[Rule] {
	return func(row pgx.CollectableRow) (r Rule, err error) {
		var grants []string
		err = row.Scan(&r.Name, &r.Kind, &r.Issuer, &r.Claims, &r.Role, &grants, &r.OrgRoles, &r.CreatedBy,
			&r.CreatedAt)
		r.Grants = authz.ParseGrants(grants)
		if r.Kind == ForWorkloads {
			r.Audience = id.Audience(org)
		}
		return r, err
	}
}

// CreateRule creates a rule of the caller's org.
func (id *Identity) CreateRule(ctx context.Context, caller authz.Caller, n NewRule) (r Rule, err error) {
	if err := n.check(); err != nil {
		return Rule{}, err
	}
	if n.Kind == ForUsers && !id.serves(n.Issuer, caller.OrgSlug) {
		return Rule{}, fault.New(fault.Invalid, "%s is no provider of this server at which people of %s sign in",
			n.Issuer, caller.OrgSlug).WithHint("an administrator of the server names providers in its config")
	}
	if id.BaseURL == "" {
		return Rule{}, fault.New(fault.Conflict, "this server has no base_url, so no token can name it").
			WithHint("an administrator of the server sets base_url in its config")
	}
	key, err := uuid.NewV7()
	if err != nil {
		return Rule{}, err
	}

	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := authz.RequireOrgRoles(ctx, tx, caller.OrgID, n.OrgRoles); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			INSERT INTO trust_rules (id, org_id, name, kind, issuer, claims, role, grants, org_roles, created_by)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9::text[], '{}'), $10)
			ON CONFLICT (org_id, name) DO NOTHING
			RETURNING `+ruleColumns,
			key, caller.OrgID, n.Name, n.Kind, n.Issuer, n.Claims, n.Role, authz.GrantTexts(n.Grants), n.OrgRoles,
			caller.Actor)
		if err != nil {
			return err
		}
		r, err = pgx.CollectExactlyOneRow(rows, id.scanRule(caller.OrgSlug))
		if errNoRows(err) {
			return fault.New(fault.Conflict, "the org has a rule %s already", n.Name).
				WithHint("`dagctl trust remove %s` takes it away", n.Name)
		}
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "trust.add", "trust:"+r.Name, map[string]any{"after": r})
	})
	return r, fault.Wrap(err, "create rule "+n.Name)
}

// GetRule returns a rule of the caller's org.
func (id *Identity) GetRule(ctx context.Context, caller authz.Caller, name string) (r Rule, err error) {
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+ruleColumns+` FROM trust_rules WHERE org_id = $1 AND name = $2`,
			caller.OrgID, name)
		if err != nil {
			return err
		}
		r, err = pgx.CollectExactlyOneRow(rows, id.scanRule(caller.OrgSlug))
		if errNoRows(err) {
			return noRule(name)
		}
		return err
	})
	return r, fault.Wrap(err, "get rule "+name)
}

func noRule(name string) error {
	return fault.New(fault.NotFound, "there is no rule %q", name).WithHint("`dagctl trust list` lists them")
}

// ListRules returns the rules of the caller's org by name.
func (id *Identity) ListRules(ctx context.Context, caller authz.Caller, page rest.PageInput) (list rest.List[Rule],
	err error) {
	var after string
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+ruleColumns+` FROM trust_rules WHERE org_id = $1 AND name > $2 ORDER BY name LIMIT $3`,
			caller.OrgID, after, page.Limit+1)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, id.scanRule(caller.OrgSlug))
		if err != nil {
			return err
		}
		list, err = rest.NewList(found, page.Limit, func(r Rule) any { return r.Name })
		return err
	})
	return list, fault.Wrap(err, "list rules")
}

// DeleteRule deletes a rule of the caller's org. Whoever is signed in or comes by it alone is out at once.
func (id *Identity) DeleteRule(ctx context.Context, caller authz.Caller, name string) error {
	err := pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var r Rule
		err := authz.ChangeAdmins(ctx, tx, caller, func() error {
			rows, err := tx.Query(ctx, `
				DELETE FROM trust_rules WHERE org_id = $1 AND name = $2 RETURNING `+ruleColumns, caller.OrgID, name)
			if err != nil {
				return err
			}
			r, err = pgx.CollectExactlyOneRow(rows, id.scanRule(caller.OrgSlug))
			if errNoRows(err) {
				return noRule(name)
			}
			return err
		})
		if err != nil {
			return err
		}

		return authz.Audit(ctx, tx, caller, "trust.remove", "trust:"+name, map[string]any{"before": r})
	})
	return fault.Wrap(err, "delete rule "+name)
}
