package web

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
)

// mostWorkers is how many workers the page lists; the API lists all of them.
const mostWorkers = 500

// workersView is the processes that run tasks, and what waits for them.
type workersView struct {
	Workers  []dispatcher.Worker
	Queues   []views.Queue
	Unserved []string // runtimes of which tasks are ready that nobody runs
}

func (s *Site) workers(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	now := clock.Now()
	workers, err := s.Dispatcher.Workers(r.Context(), caller, dispatcher.WorkerKey{}, mostWorkers, now)
	if err != nil {
		return err
	}
	v := workersView{Workers: workers}
	if v.Queues, err = s.Dispatcher.Views.Queues(r.Context(), caller, now); err != nil {
		return err
	}
	for _, q := range v.Queues {
		if q.Unserved {
			v.Unserved = append(v.Unserved, q.Runtime)
		}
	}
	return render(w, http.StatusOK, "workers.html", layout{Title: "Workers", Tab: "workers", Caller: caller, View: v})
}

func (s *Site) askDrain(r *http.Request, caller authz.Caller) (q question, err error) {
	id, token := r.PathValue("id"), r.Form.Get("of")
	q.title = "Drain " + id
	q.view = confirmView{Says: "It finishes its tasks and claims no more, until it is started anew.",
		Effects: []string{"Other workers of its runtimes go on.",
			"A server continues with everything else that it does."},
		Action: r.URL.Path, Hidden: []hiddenField{{"of", token}}, Button: "Drain", Danger: true, Back: "/workers",
		Command: "dagctl workers drain " + id}
	q.do = func(form) error {
		_, err := s.Dispatcher.Drain(r.Context(), caller, id, token, clock.Now())
		return err
	}
	return q, nil
}
