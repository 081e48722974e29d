package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/dagctl/dagctl/worker/protocol"
)

// manyCalls are the calls that end many attempts or extend many leases, with the paths of what they hold. The recorder
// makes a call of its own of each, so that scenarios see and disturb it like any other, and the backend need not know
// it.
var manyCalls = map[string]string{
	"POST /v1/tasks/complete":  "/v1/task/complete",
	"POST /v1/tasks/heartbeat": "/v1/task/heartbeat",
}

// serveMany answers a call for many attempts by calls to a path. If the answer to one of them is cut, so is the whole.
func (r *recorder) serveMany(w http.ResponseWriter, request *http.Request, path string) {
	var many protocol.Many[json.RawMessage]
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the program broke off, so there is no call
	}

	switch err := json.Unmarshal(body, &many); {
	case request.Header.Get("Authorization") == "" || r.refuses(request.Header):
		problem(w, http.StatusUnauthorized, "the worker token is missing or not valid any more")
		return
	case err != nil || len(many.Calls) == 0 || len(many.Calls) > protocol.MostCalls:
		problem(w, http.StatusUnprocessableEntity, "the body is not that of 1 to 100 calls")
		return
	}

	type answered struct {
		Status  int             `json:"status"`
		Answer  json.RawMessage `json:"answer,omitempty"`
		Problem json.RawMessage `json:"problem,omitempty"`
	}
	out := make([]answered, len(many.Calls))
	for i, one := range many.Calls {
		single := request.Clone(request.Context())
		single.URL.Path, single.RequestURI = path, path
		single.Header.Del("Authorization")
		single.Header.Set(protocol.CapabilityHeader, one.CapabilityToken)
		single.Body, single.ContentLength = io.NopCloser(bytes.NewReader(one.Body)), int64(len(one.Body))

		a := &answer{header: http.Header{}, status: http.StatusOK}
		r.ServeHTTP(a, single)
		if out[i].Status = a.status; a.status == http.StatusOK {
			out[i].Answer = a.body.Bytes()
		} else {
			out[i].Problem = a.body.Bytes()
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"answers": out}) //nolint:errcheck // the program may have gone
}
