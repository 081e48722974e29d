package web

import (
	"net/http"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
)

// mostWorkers is how many workers the page lists; the API lists all of them.
const mostWorkers = 500

func (s *Site) workers(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	workers, err := s.Dispatcher.Workers(r.Context(), caller, dispatcher.WorkerKey{}, mostWorkers, time.Now())
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "workers.html", layout{Title: "Workers", Tab: "workers", Caller: caller,
		View: struct{ Workers []dispatcher.Worker }{workers}})
}

func (s *Site) drainWorker(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	id, token := r.PathValue("id"), r.FormValue("token")
	if _, err := s.Dispatcher.Drain(r.Context(), caller, id, token, time.Now()); err != nil {
		return err
	}
	http.Redirect(w, r, "/workers", http.StatusSeeOther)
	return nil
}
