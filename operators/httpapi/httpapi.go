// Package httpapi has the operator http_api, which reads a JSON API page by page as a table.
//
// Vocabulary: a conversation is what one run says to the API: its requests, with their pace, their waits and their
// token. A page is one answer: a list of rows, and where it says so the way to the next page. It owns no tables.
package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/operators"
)

// operator reads all pages of a listing, or publishes nothing. The API has only its present content, so the source is
// forward-only: it cannot be rebuilt.
//
// Operator state: of the partitions that were read last, the hash of the rows that each gave.
type operator struct {
	client *http.Client // follows redirects to the same host only
	strict *http.Client // follows none, for what carries the secret of a client
}

// New returns the operator. Of the options, it needs the addresses that may be reached.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	if err != nil {
		return nil, err
	}
	return &operator{d.Client(0), d.StrictClient(0)}, nil // the task's own timeout bounds the requests
}

// Spec implements operators.Operator.
func (o *operator) Spec() dag.OperatorSpec {
	spec := operators.ReadsJSONRows(dag.OperatorSpec{
		Name: "http_api", Version: "1.0.0", Source: true, Effect: dag.EffectInternal, Splits: true,
		ConfigSchema: json.RawMessage(schema),
		Operational:  []string{"max_pages", "max_bytes", "max_rows", "requests_per_second"},
		SecretTo:     secretTo,
		CheckFields:  operators.CheckRequestOf,
		Canonical: func(config map[string]any) (any, *dag.ConfigError) {
			c, err := parse(config)
			if err == nil {
				err = c.checkNew()
			}
			return config, err
		},
	})

	outputs := spec.CheckJob
	spec.CheckJob = func(job *dag.Job) *dag.ConfigError {
		if err := outputs(job); err != nil {
			return err
		}
		c, err := parse(job.Config)
		if err == nil && c.usesRange() && job.TasksBy().Kind != dag.ByTime {
			return &dag.ConfigError{Key: "url", Message: "{start} and {end} are of partitions of time: " +
				"set `partition_by: { time: day }`, or another unit"}
		}
		return err
	}
	return spec
}

// maxRemembered is how many partitions a state has. One that was read before those is published again, with the same
// rows.
const maxRemembered = 400

// state is what the source remembers.
type state struct {
	Read []reading `json:"read"` // the latest at the end

	reading // of before, when there was one only
}

// reading is what a run read.
type reading struct {
	Request string `json:"request,omitempty"` // hash of config and partition: the rows of another request say nothing
	SHA256  string `json:"sha256,omitempty"`  // of the rows
}

// with returns the state after a run, and whether the run has read what the one of the same request before it has.
func (s state) with(now reading) (after state, same bool) {
	if s.Request != "" {
		s.Read = append(s.Read, s.reading)
	}
	for _, r := range s.Read {
		if r.Request != now.Request {
			after.Read = append(after.Read, r)
		} else {
			same = r == now
		}
	}
	after.Read = append(after.Read, now)
	return state{Read: after.Read[max(0, len(after.Read)-maxRemembered):]}, same
}

// summary is the result of a run for people.
type summary struct {
	Rows    int64 `json:"rows"`
	BadRows int64 `json:"bad_rows,omitempty"`
	Pages   int   `json:"pages"`
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parse(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	talk, err := o.converse(t, c)
	if err != nil {
		return operators.Result{}, err
	}

	path := filepath.Join(t.Scratch, "rows.ndjson")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return operators.Result{}, err
	}
	l := newListing(talk, file)
	err = l.readAll(ctx)
	if err := errors.Join(err, l.close(), file.Close()); err != nil {
		return operators.Result{}, err
	}

	now, err := present(t, l)
	if err != nil {
		return operators.Result{}, err
	}
	result := operators.Result{SourceVersion: "sha256:" + now.SHA256}
	var prior state
	if len(t.State) > 0 && json.Unmarshal(t.State, &prior) != nil {
		prior = state{} // what cannot be read is forgotten
	}
	after, same := prior.with(now)
	if result.State, err = json.Marshal(after); err != nil {
		return operators.Result{}, err
	}
	if same && !t.Purged() {
		result.Unchanged = true
		return result, nil
	}

	t.Progress(50, "reading rows")
	read, err := c.Read(ctx, t, "the answers", path)
	if err != nil {
		return operators.Result{}, err
	}
	result.Reading = read.Reading
	result.Result, err = json.Marshal(summary{read.Rows, read.BadRows, l.pages})
	return result, err
}

// present returns what a listing that was read is.
func present(t *operators.Task, l *listing) (reading, error) {
	text, err := json.Marshal([]any{t.Config, t.Partition})
	if err != nil {
		return reading{}, err
	}
	request := sha256.Sum256(text)
	return reading{Request: hex.EncodeToString(request[:]), SHA256: hex.EncodeToString(l.hash.Sum(nil))}, nil
}
