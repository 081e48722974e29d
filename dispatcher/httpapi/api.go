// Package httpapi has the HTTP operations of the dispatcher and of the packages around it. A handler authorizes, calls
// and shapes.
package httpapi

import (
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
)

// Config holds what the operations call.
type Config struct {
	Dispatcher *dispatcher.Dispatcher
	Sources    *sources.Sources
	Builds     *builds.Builds
	Views      *views.Views
	Control    *control.Control
	Upkeep     *upkeep.Upkeep
	Why        *why.Explainer
	Desk       *attention.Desk
	Usage      *usage.Usage
	Notices    *notices.Notices
}

// API handles the requests for the operations.
type API struct {
	dispatcher *dispatcher.Dispatcher
	pressure   *pressure.Gauge
	sources    *sources.Sources
	builds     *builds.Builds
	views      *views.Views
	control    *control.Control
	upkeep     *upkeep.Upkeep
	why        *why.Explainer
	desk       *attention.Desk
	usage      *usage.Usage
	notices    *notices.Notices
}

// New returns an API.
func New(c Config) *API {
	return &API{
		dispatcher: c.Dispatcher, pressure: c.Dispatcher.Pressure, sources: c.Sources, builds: c.Builds,
		views: c.Views, control: c.Control, upkeep: c.Upkeep, why: c.Why, desk: c.Desk, usage: c.Usage,
		notices: c.Notices,
	}
}
