// Package service assembles the dispatcher and the packages around it.
package service

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/runevents"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stream"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/rest"
)

// Config is what a Service needs.
type Config struct {
	dispatcher.Config

	// Backends map the runtimes that do not run in this process to queues and functions; they are validated.
	Backends backends.RuntimeMap
	// AWS has the credentials for queues and functions.
	AWS aws.Config

	// NoticeDialer reaches the webhooks to which DAGs send notices, and OpenLineage receivers; nil reaches only public
	// addresses.
	NoticeDialer *dial.Dialer
	// NoticeTimeout bounds one try to reach one of them; default 10 s, less than 1 min.
	NoticeTimeout time.Duration
	// NoticeTLS says whom to trust of the receivers of notices; nil: whom the machine trusts.
	NoticeTLS *tls.Config
	// PagesURL is the address of the pages, for links in notices; empty: there are no links.
	PagesURL string
	// HookLimiter bounds the deliveries to each webhook source; nil sets no bound.
	HookLimiter *rest.Limiter
	// WorkerToken is a shell command that prints a token for workers; it may be empty.
	WorkerToken string
}

// Service is a dispatcher with everything around it.
type Service struct {
	*dispatcher.Dispatcher
	Backends *backends.Backends
	Notices  *notices.Notices
	Runs     *runevents.Sender
	Sources  *sources.Sources
	Builds   *builds.Builds
	Views    *views.Views
	Control  *control.Control
	Upkeep   *upkeep.Upkeep
	Usage    *usage.Usage
	Why      *why.Explainer
	Desk     *attention.Desk
	Stream   *stream.Stream
	API      *httpapi.API
}

// New validates a config, and returns a Service that is ready to run.
func New(c Config) (*Service, error) {
	c.Queued, c.Functions = c.Backends.Of(backends.SQS), c.Backends.Of(backends.Lambda)
	c.Elsewhere = c.Backends.Elsewhere(c.Operators.Names())
	d, err := dispatcher.New(c.Config)
	if err != nil {
		return nil, err
	}

	s := &Service{Dispatcher: d}
	if s.Backends, err = backends.New(d, c.Backends, c.AWS); err != nil {
		return nil, err
	}
	s.Notices, err = notices.New(notices.Config{
		Pool: d.Pool, Tasks: d.Tasks, Vault: d.Vault, Log: d.Log, Dialer: c.NoticeDialer, Timeout: c.NoticeTimeout,
		BaseURL: c.PagesURL, TLS: c.NoticeTLS,
	})
	if err != nil {
		return nil, err
	}

	s.Runs, err = runevents.New(runevents.Config{
		Pool: d.Pool, Tasks: d.Tasks, Registry: d.Registry, Vault: d.Vault, Receivers: c.OpenLineage,
		Version: d.Version, Dialer: c.NoticeDialer, Timeout: c.NoticeTimeout,
	})
	if err != nil {
		return nil, err
	}

	s.Sources = sources.New(d, c.HookLimiter)
	s.Builds = builds.New(d, s.Sources)
	s.Views = views.New(d)
	s.Control = control.New(d, s.Sources, s.Views)
	s.Usage = usage.New(d, s.Views)
	s.Upkeep = upkeep.New(d, s.Builds, s.Views, s.Usage)
	s.Why = why.New(why.Config{
		Dispatcher: d, Sources: s.Sources, Builds: s.Builds, Views: s.Views,
		Runtimes: c.Backends, WorkerToken: c.WorkerToken,
	})
	s.Desk = attention.New(d, s.Views, c.Backends)
	s.Stream, err = stream.New(stream.Config{Pool: d.Pool, Requests: d.Requests, Registry: d.Registry, Log: d.Log})
	if err != nil {
		return nil, err
	}
	s.API = httpapi.New(httpapi.Config{
		Dispatcher: d, Sources: s.Sources, Builds: s.Builds, Views: s.Views,
		Control: s.Control, Upkeep: s.Upkeep, Why: s.Why, Desk: s.Desk, Usage: s.Usage,
		Notices: s.Notices,
	})
	return s, nil
}

// Run works until ctx ends, then hands back the leases of what this process was running.
func (s *Service) Run(ctx context.Context) error {
	loops := []dispatcher.Loop{
		{Name: "notify", Run: s.Notices.Run},
		{Name: "openlineage", Body: s.Runs.Send},
		{Name: "stream", Run: s.Stream.Run},
		{Name: "late", Body: dispatcher.AtMostEach(notices.LateEvery, s.Notices.AnnounceLate)},
		{Name: "over", Body: dispatcher.AtMostEach(notices.OverEvery, s.Notices.AnnounceOver)},
	}
	for _, part := range []interface{ Loops() []dispatcher.Loop }{
		s.Sources, s.Builds, s.Control, s.Backends, s.Upkeep,
	} {
		loops = append(loops, part.Loops()...)
	}
	return s.Dispatcher.Run(ctx, loops...)
}
