package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/spelling"
)

// Arguments and filters name things. One that names nothing is an error in all commands, and in the same words: an
// empty list would look like an answer. What is hidden from the caller is not there, so it is such a name.

// OneOf refuses the value of a flag that is none of its words; an empty value is no filter.
func OneOf[T ~string](flag string, value T, words ...T) error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	unknown := fault.New(fault.Invalid, "--%s %q is not known", flag, value)
	last := len(texts) - 1
	hint := "use " + strings.Join(texts[:last], ", ") + " or " + texts[last]
	if near := spelling.Nearest(string(value), texts); near != "" {
		hint = "did you mean " + near + "? " + UpperFirst(hint)
	}
	return unknown.WithHint("%s", hint)
}

// InOrder refuses a period whose end is not after its beginning. The texts are what was written, each after its flag.
func InOrder(fromFlag, fromText string, from time.Time, toFlag, toText string, to time.Time) error {
	if from.IsZero() || to.IsZero() || from.Before(to) {
		return nil
	}
	return fault.New(fault.Invalid, "--%s %s is not before --%s %s", fromFlag, fromText, toFlag, toText).
		WithHint("swap them: nothing happens in such a time")
}

// PartitionsInOrder refuses a range A..B of partitions that has no beginning or no end, or whose end comes first.
func PartitionsInOrder(flag, text string) error {
	from, to, isRange := strings.Cut(text, "..")
	switch {
	case isRange && (from == "" || to == ""):
		return fault.New(fault.Invalid, "--%s %s has no beginning or no end", flag, text).
			WithHint("write A..B: the first partition and the last")
	case isRange && dag.CompareKeys(from, to) > 0:
		return fault.New(fault.Invalid, "--%s %s: the first partition comes after the last one", flag, text).
			WithHint("swap them: %s..%s", to, from)
	}
	return nil
}

// RequireDAG returns an error where there is no DAG of a name. Lists of what is a DAG's call it when they are empty; no
// name is that of no DAG, and fine.
func RequireDAG(ctx context.Context, api *Client, name string) error {
	if name == "" {
		return nil
	}
	var found json.RawMessage
	err := api.plain().Get(ctx, DAGPath(name), nil, &found)
	if !fault.Is(err, fault.NotFound) {
		return err
	}

	names, err := namesIn(ctx, api, "/v1/dags", nil)
	if err != nil {
		return err
	}
	missing := fault.New(fault.NotFound, "there is no DAG %s", name)
	if len(names) == 0 {
		return missing.WithHint("no DAG is deployed yet")
	}
	return missing.WithHint("%s", meant(name, names, "`dagctl status` lists the DAGs"))
}

// RequireJob returns an error where a DAG, or its job, does not exist. Without a DAG, it looks for the job in all DAGs.
func RequireJob(ctx context.Context, api *Client, dag, job string) error {
	if err := RequireDAG(ctx, api, dag); err != nil || job == "" {
		return err
	}
	dags := []string{dag}
	if dag == "" {
		var err error
		if dags, err = namesIn(ctx, api, "/v1/dags", nil); err != nil {
			return err
		}
	}

	var jobs []string
	for _, d := range dags {
		found, err := jobsOf(ctx, api, d)
		if err != nil {
			return err
		}
		if slices.Contains(found, job) {
			return nil
		}
		jobs = append(jobs, found...)
	}
	if dag == "" {
		return fault.New(fault.NotFound, "no DAG has a job %s", job).
			WithHint("%s", meant(job, jobs, "`dagctl status DAG` lists the jobs of a DAG"))
	}
	return noJob(ctx, api, dag, job, jobs)
}

// noJob is the error about a job that a DAG does not have, or that is hidden: the job that was meant, or else what the
// server says, which knows the new name of a renamed one.
func noJob(ctx context.Context, api *Client, dag, job string, jobs []string) error {
	missing := fault.New(fault.NotFound, "there is no job %s/%s", dag, job)
	jobs = slices.DeleteFunc(jobs, func(name string) bool { return name == job })
	if near := spelling.Nearest(job, jobs); near != "" {
		return missing.WithHint("did you mean %s?", near)
	}

	var found json.RawMessage
	if err := api.plain().Get(ctx, "/v1/jobs/"+url.PathEscape(dag)+"/"+url.PathEscape(job), nil, &found); err != nil {
		return err
	}
	return missing.WithHint("`dagctl status %s` lists the jobs", dag)
}

// OfJob returns the error of a call about a job or, if the DAG has no such job, an error with the one that was meant.
func OfJob(ctx context.Context, api *Client, dag, job string, err error) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	jobs, failed := jobsOf(ctx, api, dag)
	if failed != nil || len(jobs) == 0 || slices.Contains(jobs, job) {
		return err
	}
	return noJob(ctx, api, dag, job, jobs)
}

// RequireDataset returns an error where there is no dataset of a name.
func RequireDataset(ctx context.Context, api *Client, name string) error {
	if name == "" {
		return nil
	}
	var found json.RawMessage
	return api.Get(ctx, DatasetPath(name), nil, &found)
}

// RequireSome returns the error missing where a list has nothing that one filter alone selects.
func RequireSome(ctx context.Context, api *Client, path string, filter url.Values, missing error) error {
	found, err := Fetch[json.RawMessage](ctx, api, path, filter, Page{Limit: 1})
	if err == nil && len(found) == 0 {
		err = missing
	}
	return err
}

// namesIn returns the names in a list.
func namesIn(ctx context.Context, api *Client, path string, query url.Values) ([]string, error) {
	type named struct {
		Name string `json:"name"`
	}
	found, err := Fetch[named](ctx, api.plain(), path, query, Page{Limit: mostPerRequest})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = n.Name
	}
	return names, nil
}

// jobsOf returns the names of a DAG's jobs; of no DAG, none.
func jobsOf(ctx context.Context, api *Client, dag string) ([]string, error) {
	var detail struct {
		Jobs []struct {
			Name string `json:"name"`
		} `json:"jobs"`
	}
	if err := api.plain().Get(ctx, DAGPath(dag), nil, &detail); err != nil && !fault.Is(err, fault.NotFound) {
		return nil, err
	}
	names := make([]string, len(detail.Jobs))
	for i, j := range detail.Jobs {
		names[i] = j.Name
	}
	return names, nil
}

// meant says which of some names was meant, which there are if they are few, or how they are listed.
func meant(name string, names []string, list string) string {
	const few = 8
	if near := spelling.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	if len(names) > 0 && len(names) <= few {
		return "there is " + strings.Join(names, ", ")
	}
	return list
}

// explain adds to the error of a call which name was meant if its path names a DAG, job or dataset that is not there.
// The answers to calls that make such things name others.
func (c *Client) explain(ctx context.Context, method, path string, err error) error {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")
	missing := fault.Is(err, fault.NotFound)
	if !c.explains || len(parts) < 2 || !missing && !fault.Is(err, fault.Conflict) {
		return err
	}
	for i := range parts {
		if text, wrong := url.PathUnescape(parts[i]); wrong == nil {
			parts[i] = text
		}
	}

	switch last := parts[len(parts)-1]; parts[0] {
	case "dags", "jobs", "sources":
		if method == http.MethodPost && len(parts) == 3 && (last == "versions" || last == "plan") {
			return err // the DAG may be a new one
		}
		if unknown := RequireDAG(ctx, c, parts[1]); fault.Is(unknown, fault.NotFound) {
			return unknown
		}
		if parts[0] != "dags" && len(parts) > 2 {
			return OfJob(ctx, c, parts[1], parts[2], err)
		}
	case "datasets":
		return ofDataset(ctx, c, parts[1], err)
	}
	return err
}

// ofDataset returns the error of a call about a dataset or, if there is none, an error with the one that was meant.
func ofDataset(ctx context.Context, api *Client, name string, err error) error {
	var found json.RawMessage
	if !fault.Is(api.plain().Get(ctx, DatasetPath(name), nil, &found), fault.NotFound) {
		return err
	}

	query := url.Values{}
	if strings.Contains(name, "/") {
		query.Set("unpublished", "true")
	}
	names, failed := namesIn(ctx, api, "/v1/datasets", query)
	near := spelling.Nearest(name, names)
	if failed != nil || near == "" {
		return err
	}
	return fault.New(fault.NotFound, "there is no dataset %s", name).WithHint("did you mean %s?", near)
}

// plain returns a client whose errors are as the server says.
func (c *Client) plain() *Client {
	plain := *c
	plain.explains = false
	return &plain
}

// Argument returns a path as a shell takes it for one argument that is no flag.
func Argument(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	if plainPath.MatchString(path) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

var plainPath = late.Pattern(`^[A-Za-z0-9_./:@%+,-]+$`)
