package web

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/clock"
)

// mostWorkers is how many workers the page lists; the API lists all of them.
const mostWorkers = 500

func (s *Site) workers(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	workers, err := s.Dispatcher.Workers(r.Context(), caller, dispatcher.WorkerKey{}, mostWorkers, clock.Now())
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "workers.html", layout{Title: "Workers", Tab: "workers", Caller: caller,
		View: struct{ Workers []dispatcher.Worker }{workers}})
}

func (s *Site) drainWorker(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	id, token := r.PathValue("id"), r.FormValue("token")
	if _, err := s.Dispatcher.Drain(r.Context(), caller, id, token, clock.Now()); err != nil {
		return err
	}
	http.Redirect(w, r, "/workers", http.StatusSeeOther)
	return nil
}
