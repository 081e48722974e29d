package tasks

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
)

// runNow runs a job whose tasks nobody makes by hand: it reads a source at once, or computes one partition of a job
// that has inputs or is asked for it. It follows what that sets off if it is to be watched. It reports false for other
// jobs.
func runNow(
	ctx context.Context, c *cli.CLI, api *cli.Client, dag, job, partition string, watch bool,
) (done bool, err error) {
	path := "/v1/jobs/" + url.PathEscape(dag) + "/" + url.PathEscape(job)
	var detail views.JobDetail
	if err := api.Get(ctx, path, nil, &detail); err != nil {
		return false, err
	}

	asked := detail.Definition != nil && detail.Definition.FirstPartition != ""
	switch {
	case detail.Source == "" && external(detail):
		return true, fault.New(fault.Invalid, "%s/%s acts outside dagctl, for what its inputs get", dag, job).
			WithHint("`dagctl invalidate DATASET --partition KEY` makes a partition of its input newer, and it runs " +
				"for that, as all readers do")
	case sources.Readable(detail.Source) && asked && partition != "":
		return true, computeNow(ctx, c, api, detail, partition, watch)
	case sources.Readable(detail.Source):
		return true, readNow(ctx, c, api, detail, partition, watch)
	case detail.Source == "" && detail.Definition != nil && detail.Definition.SplitBy != "":
		return true, fault.New(fault.Invalid, "%s/%s splits its rows: one task makes all partitions when its inputs "+
			"change", dag, job).WithHint("`dagctl rematerialize` makes all of them again")
	case detail.Source == "" && partition != "":
		return true, computeNow(ctx, c, api, detail, partition, watch)
	case detail.Source == "":
		return true, fault.New(fault.Invalid, "%s/%s is computed from its inputs, partition by partition", dag, job).
			WithHint("name one by --partition, `all` if it has none, or several by "+
				"`dagctl backfill %s/%s --from A --to B`", dag, job)
	}
	return false, nil
}

// external reports whether a job does something outside, which nothing does again at will. Jobs whose definition the
// caller may not see count as others.
func external(job views.JobDetail) bool {
	return job.Definition != nil && job.Definition.Effect == "external"
}

// readNow makes a source due at once.
func readNow(
	ctx context.Context, c *cli.CLI, api *cli.Client, job views.JobDetail, partition string, watch bool,
) error {
	switch {
	case partition != "" && job.Source == "cron":
		return fault.New(fault.Invalid, "%s/%s is a source: it is read as its schedule does", job.DAG, job.Name).
			WithHint("leave --partition out; or `dagctl backfill %s/%s --from %s --to %s` reads one that has been",
				job.DAG, job.Name, partition, partition)
	case partition != "":
		return fault.New(fault.Invalid, "%s/%s is a source: it is read whole, and finds the partitions itself",
			job.DAG, job.Name).WithHint("leave --partition out")
	}

	var r sources.Reading
	path := cli.SourcePath(job.DAG, job.Name)
	if err := api.Post(ctx, path+"/read", nil, &r); err != nil {
		return err
	}
	if watch {
		query := url.Values{"since": {r.DueAt.Format(time.RFC3339Nano)}}
		return watchCaused(ctx, c, api, query, path+"/caused")
	}
	return c.Print(r, func(w io.Writer) {
		if r.Asked {
			fmt.Fprintf(w, "%s/%s is read now.\n", r.DAG, r.Job)
		} else {
			fmt.Fprintf(w, "%s/%s was due already: it is read now.\n", r.DAG, r.Job)
		}
	})
}

// computeNow computes one partition of a job, whether it exists or not.
func computeNow(
	ctx context.Context, c *cli.CLI, api *cli.Client, job views.JobDetail, partition string, watch bool,
) error {
	var dry control.Backfill
	path := "/v1/dags/" + url.PathEscape(job.DAG) + "/backfills"
	request := control.BackfillRequest{Job: job.Name, From: partition, To: partition, Existing: "all", DryRun: true}
	if err := api.Post(ctx, path, request, &dry); err != nil {
		return err
	}
	if dry.Pending == 0 {
		return fault.New(fault.NotFound, "%s/%s has no partition %s to compute: its inputs lack it", job.DAG, job.Name,
			partition).WithHint("`dagctl why-not DATASET %s` says what it waits for", partition)
	}

	var b control.Backfill
	request.DryRun = false
	if err := api.Post(ctx, path, request, &b); err != nil {
		return err
	}
	if watch {
		return watchCaused(ctx, c, api, nil, backfillPath(job.DAG, b.ID.String())+"/caused")
	}
	return c.Print(b, func(w io.Writer) {
		fmt.Fprintf(w, "%s/%s computes %s anew; `dagctl backfill list %s` says how far it is.\n", job.DAG, job.Name,
			partition, job.DAG)
	})
}
