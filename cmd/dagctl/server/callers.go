package server

import (
	"os"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/web"
)

// newIdentity makes what lets people and pipelines in.
func (a *App) newIdentity(cfg Config) error {
	providers, err := cfg.providers(os.Getenv)
	if err != nil {
		return err
	}
	starts, err := rest.NewLimiter(cfg.Limits.SignInsPerSecond, cfg.Limits.SignInBurst)
	if err != nil {
		return err
	}

	a.identity, err = identity.New(identity.Config{
		Owner: a.pool, Requests: a.requests, BaseURL: cfg.BaseURL, Providers: providers, Dialer: a.dialer,
		Starts:    starts,
		IdleAfter: time.Duration(cfg.Identity.SessionIdleHours) * time.Hour,
		Ends:      time.Duration(cfg.Identity.SessionDays) * 24 * time.Hour, Frame: web.Frame, Log: a.log,
	})
	return err
}

// newAPI makes the API, without routes: who may call it, and how often.
func (a *App) newAPI(cfg Config, dev *authz.Dev) (*authz.API, error) {
	callers, err := rest.NewLimiter(cfg.Limits.RequestsPerSecond, cfg.Limits.Burst)
	if err != nil {
		return nil, err
	}
	workers, err := rest.NewLimiter(cfg.Limits.WorkerRequestsPerSecond, cfg.Limits.WorkerBurst)
	if err != nil {
		return nil, err
	}
	failures, err := rest.NewLimiter(cfg.Limits.RefusedPerSecond, cfg.Limits.RefusedBurst)
	if err != nil {
		return nil, err
	}

	tokens := authz.NewTokens(a.pool)
	return authz.NewAPI(authz.Config{
		REST: rest.Config{Version: cli.Version(), Logger: a.log, Metrics: a.Metrics,
			Explain: a.health.Answer},
		Authenticators: append([]authz.Authenticator{tokens}, a.identity.Authenticators()...), Dev: dev,
		Limiter: callers, Quotas: a.quotas, Turns: a.turns, Failures: failures, Refusals: a.refusals,
		Workers: tokens, WorkerLimiter: workers, Signer: a.signer,
		Origins: cfg.origins(), Hosts: cfg.hosts(), SignInPath: identity.SignInPath, RenderError: web.RenderError,
	})
}
