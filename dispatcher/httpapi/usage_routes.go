package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/internal/clock"
)

// addUsageRoutes adds the operations that tell what was used, what that costs, and what comes next.
func (a *API) addUsageRoutes(api *authz.API) {
	type costsOutput struct{ Body usage.Costs }
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-costs", Method: http.MethodGet, Path: "/v1/costs", Tags: []string{"costs"},
		Summary: "Get what jobs used, and what that costs",
		Description: "Attempts are counted within a minute after they end. Who may not look into a job gets its " +
			"tasks and seconds, and neither its rows and bytes nor the names of its datasets.",
	}, func(ctx context.Context, caller authz.Caller, in *usage.Question) (*costsOutput, error) {
		found, err := a.usage.Costs(ctx, caller, *in, clock.Now())
		return &costsOutput{found}, err
	})

	type trendInput struct {
		DAG  string `path:"dag"`
		Job  string `path:"job"`
		Days int    `query:"days" minimum:"1" maximum:"400" default:"30"`
	}
	type trendOutput struct{ Body usage.Trend }
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-job-trend", Method: http.MethodGet, Path: "/v1/jobs/{dag}/{job}/trend",
		Tags:    []string{"costs"},
		Summary: "Get durations, usage and freshness of a job by the day",
	}, func(ctx context.Context, caller authz.Caller, in *trendInput) (*trendOutput, error) {
		found, err := a.usage.Trend(ctx, caller, in.DAG, in.Job, in.Days, clock.Now())
		return &trendOutput{found}, err
	})

	type forecastOutput struct{ Body usage.Forecast }
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-forecast", Method: http.MethodGet, Path: "/v1/forecast", Tags: []string{"dags"},
		Summary: "List when sources fire and datasets are due next, at most 20",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*forecastOutput, error) {
		found, err := a.usage.Forecast(ctx, caller, clock.Now())
		return &forecastOutput{found}, err
	})
}
