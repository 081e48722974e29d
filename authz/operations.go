package authz

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/rest"
)

// Issuers returns the issuers of the providers at which the people of an org, given by its slug, sign in.
type Issuers func(org string) []string

// Register adds this package's operations to an API. The pool is the requests'.
func Register(api *API, requests *pgxpool.Pool, issuers Issuers) {
	Handle(api, Reader, huma.Operation{
		OperationID: "whoami", Method: http.MethodGet, Path: "/v1/whoami", Tags: []string{"access"},
		Summary: "Get who the caller is, and what it may do",
	}, whoami)

	type listInput struct{ rest.PageInput }
	type tokensOutput struct{ Body rest.List[Token] }
	Handle(api, Admin, huma.Operation{
		OperationID: "list-tokens", Method: http.MethodGet, Path: "/v1/tokens", Tags: []string{"access"},
		Summary: "List the org's service tokens",
	}, func(ctx context.Context, caller Caller, in *listInput) (*tokensOutput, error) {
		list, err := ListTokens(ctx, requests, caller, in.PageInput)
		return &tokensOutput{list}, err
	})

	Handle(api, Admin, huma.Operation{
		OperationID: "create-token", Method: http.MethodPost, Path: "/v1/tokens", Tags: []string{"access"},
		Summary: "Create a service token", DefaultStatus: http.StatusCreated,
		Description: "A worker token may claim tasks of the given `runtimes`, `operators` and `orgs`. Only the " +
			"server's administrator can create a token for several orgs. A scim token lets an identity provider " +
			"keep the org's users of one `issuer` by SCIM, and nothing else.",
	}, func(ctx context.Context, caller Caller, in *createTokenInput) (*createTokenOutput, error) {
		n := in.Body.token()
		if err := n.requireProvider(caller.OrgSlug, issuers); err != nil {
			return nil, err
		}
		secret, token, err := CreateToken(ctx, requests, caller, n)
		return &createTokenOutput{CreatedToken{Token: token, Secret: secret}}, err
	})

	type revokeInput struct {
		Name string `path:"name" maxLength:"63"`
	}
	Handle(api, Admin, huma.Operation{
		OperationID: "revoke-token", Method: http.MethodDelete, Path: "/v1/tokens/{name}", Tags: []string{"access"},
		Summary: "Revoke a service token at once",
	}, func(ctx context.Context, caller Caller, in *revokeInput) (*struct{}, error) {
		return nil, RevokeToken(ctx, requests, caller, in.Name)
	})

	registerOrgRoles(api, requests)

	type usageOutput struct{ Body OrgUsage }
	Handle(api, Reader, huma.Operation{
		OperationID: "get-org-usage", Method: http.MethodGet, Path: "/v1/org/usage", Tags: []string{"access"},
		Summary:     "Get what the org uses, and what it may",
		Description: "Requests are counted by minute, uploads by day; the rest is measured now and then.",
	}, func(ctx context.Context, caller Caller, _ *struct{}) (*usageOutput, error) {
		usage, err := OrgUsageOf(ctx, requests, caller)
		return &usageOutput{usage}, err
	})
}

// Identity is a Caller as the API shows it.
type Identity struct {
	Org      string   `json:"org" doc:"Slug of the org"`
	Actor    string   `json:"actor" example:"token:ci"`
	Name     string   `json:"name,omitempty" doc:"Of a user, or the subject of a workload"`
	Role     Role     `json:"role" enum:"reader,proposer,writer,admin"`
	Grants   []Grant  `json:"grants,omitempty" doc:"Roles on some DAGs besides"`
	OrgRoles []string `json:"org_roles,omitempty" doc:"Visibility groups"`

	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When the caller's token ends"`
}

type whoamiOutput struct{ Body Identity }

func whoami(_ context.Context, caller Caller, _ *struct{}) (*whoamiOutput, error) {
	me := Identity{Org: caller.OrgSlug, Actor: caller.Actor, Name: caller.Name, Role: caller.Role,
		Grants: caller.Grants, OrgRoles: caller.OrgRoles}
	if !caller.ExpiresAt.IsZero() {
		me.ExpiresAt = &caller.ExpiresAt
	}
	return &whoamiOutput{me}, nil
}

// CreateTokenRequest describes a service token to create.
type CreateTokenRequest struct {
	Name       string    `json:"name" maxLength:"63"`
	Kind       TokenKind `json:"kind,omitempty" enum:"user,worker,scim" doc:"Default: user"`
	Role       Role      `json:"role,omitempty" enum:"reader,proposer,writer,admin" doc:"For user tokens, and for the users of scim tokens, which are readers by default"`
	Grants     []Grant   `json:"grants,omitempty" maxItems:"100" doc:"For user tokens: roles on some DAGs besides"`
	OrgRoles   []string  `json:"org_roles,omitempty" maxItems:"100" doc:"For user tokens: visibility groups, each as role:SLUG"`
	Runtimes   []string  `json:"runtimes,omitempty" maxItems:"100" doc:"For worker tokens"`
	Operators  []string  `json:"operators,omitempty" maxItems:"100" doc:"For worker tokens. Default: all"`
	Orgs       []string  `json:"orgs,omitempty" maxItems:"100" doc:"For worker tokens: slugs. Default: the caller's"`
	TTLSeconds int64     `json:"ttl_seconds,omitempty" minimum:"60" maximum:"31536000" doc:"Default: 90 days"`
	Issuer     string    `json:"issuer,omitempty" maxLength:"500" doc:"For scim tokens: the provider at which the users sign in, exactly as its ID tokens have it"`

	SubjectFrom SubjectFrom `json:"subject_from,omitempty" enum:"externalId,userName" doc:"For scim tokens: the attribute that holds a user's subject at the issuer. Default: the first sign-in with the verified e-mail address tells"`
}

func (b CreateTokenRequest) token() NewToken {
	return NewToken{
		Name: b.Name, Kind: b.Kind, Role: b.Role, Grants: b.Grants, OrgRoles: b.OrgRoles, Runtimes: b.Runtimes,
		Operators: b.Operators, Orgs: b.Orgs, TTL: time.Duration(b.TTLSeconds) * time.Second,
		Issuer: b.Issuer, SubjectFrom: b.SubjectFrom,
	}
}

type createTokenInput struct{ Body CreateTokenRequest }

// CreatedToken is a new token with its secret, which is never shown again.
type CreatedToken struct {
	Token
	Secret string `json:"secret" doc:"Keep it: it is not shown again"`
}

type createTokenOutput struct{ Body CreatedToken }
