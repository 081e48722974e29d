package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

type notifyOutput struct {
	Body rest.List[notices.ReceiverAnswer]
}

// addNotifyRoutes adds the operations on the receivers that DAGs notify.
func (a *API) addNotifyRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Operate, authz.TheDAG), huma.Operation{
		OperationID: "test-notify", Method: http.MethodPost, Path: "/v1/dags/{dag}/notify/test", Tags: []string{"dags"},
		Summary: "Send a test message to each receiver that a DAG notifies",
		Description: "The answer says what each receiver answered. The receivers are those of the version that " +
			"serves, or of the newest, if none does.",
	}, func(ctx context.Context, caller authz.Caller, in *dagInput) (*notifyOutput, error) {
		err := pg.InOrgTx(ctx, a.dispatcher.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			_, err := a.dispatcher.Registry.DAG(ctx, tx, caller, in.DAG)
			return err
		})
		if err != nil {
			return nil, err
		}
		answers, err := a.notices.TryFor(ctx, caller, in.DAG)
		return &notifyOutput{rest.List[notices.ReceiverAnswer]{Items: answers}}, err
	})
}
