package identity

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// AddRoutes adds the pages and operations of this package to an API.
func (id *Identity) AddRoutes(api *authz.API) {
	id.addPages(api)
	id.addSignIn(api)
	id.addUsers(api)
	id.addRules(api)
}

type (
	startDeviceInput struct {
		Body struct {
			Client string `json:"client,omitempty" maxLength:"200" doc:"Name of the machine, for the person who approves"`
		}
	}
	deviceOutput struct{ Body Device }
	redeemInput  struct {
		Body struct {
			Code     string `json:"code" maxLength:"200" doc:"The device's code, or the one that the browser carried back"`
			Verifier string `json:"verifier,omitempty" maxLength:"200" doc:"Of the challenge that the browser was opened with"`
		}
	}
	waitingOutput  struct{ Body Waiting }
	sessionsOutput struct {
		Body struct {
			Items []Session `json:"items"`
		}
	}
	signOutInput struct {
		Body struct {
			Everywhere bool `json:"everywhere,omitempty" doc:"End all sessions of the user, not only this one"`
		}
	}
)

// addressed is a request whose sender's address counts.
type addressed struct{ request *http.Request }

// Resolve takes the request that an operation came by.
func (a *addressed) Resolve(hc huma.Context) []error {
	a.request, _ = humago.Unwrap(hc)
	return nil
}

func (id *Identity) addSignIn(api *authz.API) {
	type startInput struct {
		addressed
		startDeviceInput
	}
	authz.Handle(api, authz.Public, huma.Operation{
		OperationID: "start-device", Method: http.MethodPost, Path: "/v1/auth/device", Tags: []string{"access"},
		Summary: "Begin to sign in a command line by a browser on another machine",
	}, func(ctx context.Context, _ authz.Caller, in *startInput) (*deviceOutput, error) {
		if err := id.takeStart(in.request); err != nil {
			return nil, err
		}
		d, err := id.startDevice(ctx, in.Body.Client)
		return &deviceOutput{d}, err
	})

	type tokenInput struct {
		addressed
		redeemInput
	}
	authz.Handle(api, authz.Public, huma.Operation{
		OperationID: "redeem-code", Method: http.MethodPost, Path: "/v1/auth/token", Tags: []string{"access"},
		Summary: "Get the session of a command line that a browser has let in",
	}, func(ctx context.Context, _ authz.Caller, in *tokenInput) (*waitingOutput, error) {
		if err := id.takeStart(in.request); err != nil {
			return nil, err
		}
		w, err := id.redeem(ctx, in.Body.Code, in.Body.Verifier)
		return &waitingOutput{w}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-sessions", Method: http.MethodGet, Path: "/v1/auth/sessions", Tags: []string{"access"},
		Summary: "List where the caller is signed in",
	}, func(ctx context.Context, caller authz.Caller, in *addressed) (*sessionsOutput, error) {
		all, err := id.ListSessions(ctx, caller, in.request)
		out := &sessionsOutput{}
		out.Body.Items = all
		return out, err
	})

	type outInput struct {
		addressed
		signOutInput
	}
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "sign-out", Method: http.MethodPost, Path: "/v1/auth/sign-out", Tags: []string{"access"},
		Summary: "End the session of this request, or all of the caller",
	}, func(ctx context.Context, caller authz.Caller, in *outInput) (*struct{}, error) {
		return nil, id.signOut(ctx, caller, in.request, in.Body.Everywhere)
	})
}

type (
	userInput struct {
		User string `path:"user" maxLength:"254" doc:"Id or e-mail address"`
	}
	userOutput struct{ Body User }
)

func (id *Identity) addUsers(api *authz.API) {
	type listInput struct{ rest.PageInput }
	type listOutput struct{ Body rest.List[User] }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-users", Method: http.MethodGet, Path: "/v1/users", Tags: []string{"access"},
		Summary: "List the org's users",
	}, func(ctx context.Context, caller authz.Caller, in *listInput) (*listOutput, error) {
		list, err := id.ListUsers(ctx, caller, in.PageInput)
		return &listOutput{list}, err
	})

	type inviteInput struct{ Body NewUser }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "invite-user", Method: http.MethodPost, Path: "/v1/users", Tags: []string{"access"},
		Summary: "Invite a user", DefaultStatus: http.StatusCreated,
		Description: "Whoever signs in at the issuer with the verified e-mail address is the user.",
	}, func(ctx context.Context, caller authz.Caller, in *inviteInput) (*userOutput, error) {
		u, err := id.Invite(ctx, caller, in.Body)
		return &userOutput{u}, err
	})

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "get-user", Method: http.MethodGet, Path: "/v1/users/{user}", Tags: []string{"access"},
		Summary: "Get a user",
	}, func(ctx context.Context, caller authz.Caller, in *userInput) (*userOutput, error) {
		u, err := id.GetUser(ctx, caller, in.User)
		return &userOutput{u}, err
	})

	type changeInput struct {
		User string `path:"user" maxLength:"254" doc:"Id or e-mail address"`
		Body UserChange
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "change-user", Method: http.MethodPatch, Path: "/v1/users/{user}", Tags: []string{"access"},
		Summary: "Change what a user may do, or disable the user",
	}, func(ctx context.Context, caller authz.Caller, in *changeInput) (*userOutput, error) {
		u, err := id.ChangeUser(ctx, caller, in.User, in.Body)
		return &userOutput{u}, err
	})

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "remove-user", Method: http.MethodDelete, Path: "/v1/users/{user}", Tags: []string{"access"},
		Summary: "Remove a user, with all sessions",
		Description: "A rule may admit the same person again: disable whom " +
			"nothing must let in.",
	}, func(ctx context.Context, caller authz.Caller, in *userInput) (*struct{}, error) {
		return nil, id.RemoveUser(ctx, caller, in.User)
	})

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "sign-out-user", Method: http.MethodPost, Path: "/v1/users/{user}/sign-out",
		Tags:    []string{"access"},
		Summary: "End all sessions of a user",
	}, func(ctx context.Context, caller authz.Caller, in *userInput) (*struct{}, error) {
		return nil, id.SignOutUser(ctx, caller, in.User)
	})

	type linkOutput struct{ Body Link }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "create-sign-in-link", Method: http.MethodPost, Path: "/v1/users/{user}/link",
		Tags: []string{"access"}, DefaultStatus: http.StatusCreated,
		Summary: "Create a link that signs a user in once whom no provider knows",
	}, func(ctx context.Context, caller authz.Caller, in *userInput) (*linkOutput, error) {
		l, err := id.CreateLink(ctx, caller, in.User)
		return &linkOutput{l}, err
	})
}

func (id *Identity) addRules(api *authz.API) {
	type listInput struct{ rest.PageInput }
	type listOutput struct{ Body rest.List[Rule] }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-trust", Method: http.MethodGet, Path: "/v1/trust", Tags: []string{"access"},
		Summary: "List the rules by which the org trusts issuers",
	}, func(ctx context.Context, caller authz.Caller, in *listInput) (*listOutput, error) {
		list, err := id.ListRules(ctx, caller, in.PageInput)
		return &listOutput{list}, err
	})

	type createInput struct{ Body NewRule }
	type ruleOutput struct{ Body Rule }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "add-trust", Method: http.MethodPost, Path: "/v1/trust", Tags: []string{"access"},
		Summary: "Trust an issuer for those whose claims meet conditions", DefaultStatus: http.StatusCreated,
		Description: "A rule of kind user admits people who sign in; one of kind workload admits programs that send " +
			"the issuer's token as their bearer token, made for the audience that the answer names; one of kind " +
			"group gives roles to the members of groups that the issuer's provider keeps by SCIM.",
	}, func(ctx context.Context, caller authz.Caller, in *createInput) (*ruleOutput, error) {
		r, err := id.CreateRule(ctx, caller, in.Body)
		return &ruleOutput{r}, err
	})

	type ruleInput struct {
		Rule string `path:"rule" maxLength:"63"`
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "remove-trust", Method: http.MethodDelete, Path: "/v1/trust/{rule}", Tags: []string{"access"},
		Summary: "Take a rule away; whoever came by it alone is out at once",
	}, func(ctx context.Context, caller authz.Caller, in *ruleInput) (*struct{}, error) {
		return nil, id.DeleteRule(ctx, caller, in.Rule)
	})
}
