package tasks

import (
	"context"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// A task has three addresses: its id, the first characters of it, and DAG/JOB or DAG/JOB@PARTITION, which is the newest
// task of the job or of that partition.

// fewest is how many characters of an id are an address at least.
const fewest = 4

// startOfID matches the first characters of an id.
var startOfID = late.Pattern(`^[0-9a-fA-F]{1,8}(-[0-9a-fA-F]{0,4}){0,3}(-[0-9a-fA-F]{0,12})?$`)

// checkAddress refuses what cannot be the address of a task, before a server is asked.
func checkAddress(text string) error {
	if _, err := uuid.Parse(text); err == nil {
		return nil
	}
	if dag, job, ok := strings.Cut(text, "/"); ok {
		job, partition, at := strings.Cut(job, "@")
		if dag != "" && job != "" && (!at || partition != "") {
			return nil
		}
	} else if startOfID.MatchString(text) {
		if len(text) >= fewest {
			return nil
		}
		return fault.New(fault.Invalid, "%q is too short for the start of a task's id", text).
			WithHint("give at least %d characters", fewest)
	}
	return fault.New(fault.Invalid, "%q is not the id of a task", text).
		WithHint("give an id or its first characters, or DAG/JOB[@PARTITION]; `dagctl tasks list` shows the ids")
}

// findTask returns the id of the task at an address.
func findTask(ctx context.Context, api *cli.Client, text string) (uuid.UUID, error) {
	if err := checkAddress(text); err != nil {
		return uuid.Nil, err
	}
	if id, err := uuid.Parse(text); err == nil {
		return id, nil
	}
	if dag, job, ok := strings.Cut(text, "/"); ok {
		return newestTask(ctx, api, dag, job)
	}

	const shown = 10
	found, err := cli.Fetch[views.Task](ctx, api, "/v1/tasks", url.Values{"id": {text}}, cli.Page{Limit: shown + 1})
	switch {
	case err != nil:
		return uuid.Nil, err
	case len(found) == 0:
		return uuid.Nil, fault.New(fault.NotFound, "there is no task whose id begins with %s", text).
			WithHint("`dagctl tasks list` shows the ids")
	case len(found) == 1:
		return found[0].ID, nil
	}

	ambiguous := fault.New(fault.Invalid, "the ids of several tasks begin with %s", text).
		WithHint("give more characters of the one that is meant")
	for _, t := range found[:min(len(found), shown)] {
		name := strings.TrimSuffix(t.DAG+"/"+t.Job+"@"+cli.Whole(t.Partition), "@")
		ambiguous.Problems = append(ambiguous.Problems, fault.Problem{Location: t.ID.String(),
			Message: name + " " + t.Status})
	}
	if len(found) > shown {
		ambiguous.Problems = append(ambiguous.Problems, fault.Problem{Message: "and more"})
	}
	return uuid.Nil, ambiguous
}

// newestTask returns the newest task of a job, or of one of its partitions.
func newestTask(ctx context.Context, api *cli.Client, dag, job string) (uuid.UUID, error) {
	job, partition, _ := strings.Cut(job, "@")
	query := url.Values{"dag": {dag}, "job": {job}}
	of := dag + "/" + job
	if partition != "" {
		query.Set("partition", partition)
		of += "@" + partition
	}

	found, err := cli.Fetch[views.Task](ctx, api, "/v1/tasks", query, cli.Page{Limit: 1})
	if err == nil && len(found) == 0 {
		err = cli.RequireJob(ctx, api, dag, job)
	}
	if err != nil {
		return uuid.Nil, err
	}
	if len(found) == 0 {
		return uuid.Nil, fault.New(fault.NotFound, "there is no task of %s", of).
			WithHint("`dagctl tasks list --dag %s` shows those that there are", dag)
	}
	return found[0].ID, nil
}

// findTasks returns the ids of the tasks at some addresses.
func findTasks(ctx context.Context, api *cli.Client, addresses []string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for _, text := range addresses {
		id, err := findTask(ctx, api, text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// connectTo returns a client and the path, in the API, of the task at an address.
func connectTo(ctx context.Context, c *cli.CLI, address string) (*cli.Client, string, error) {
	if err := checkAddress(address); err != nil {
		return nil, "", err
	}
	api, err := c.Connect()
	if err != nil {
		return nil, "", err
	}
	id, err := findTask(ctx, api, address)
	return api, "/v1/tasks/" + id.String(), err
}
