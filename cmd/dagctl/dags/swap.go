package dags

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// previewSwap prints what readers would see change if another version served, which is at a path of the API. what is
// the swap's name, such as rollback.
func previewSwap(
	ctx context.Context, c *cli.CLI, api *cli.Client, path, what string, given contract.Agreed,
) error {
	var p deploy.SwapPreview
	if err := api.Get(ctx, path, nil, &p); err != nil {
		return err
	}
	return c.Print(p, func(w io.Writer) { writeSwap(c, w, p, what, given) })
}

// writeSwap writes what readers would see change by a swap, what it cancels, and what it needs.
func writeSwap(c *cli.CLI, w io.Writer, p deploy.SwapPreview, what string, given contract.Agreed) {
	fmt.Fprintf(w, "%s v%d would serve", p.DAG, p.To)
	if p.From != nil {
		fmt.Fprintf(w, " in place of v%d", *p.From)
	}
	fmt.Fprintln(w, ".")

	words := map[string]string{deploy.Create: "appears", deploy.Remove: "goes", deploy.SwapOnly: "swapped",
		deploy.Reuse: "same"}
	t := cli.Table{Style: c.Style(w), Header: []string{"DATASET", "CHANGE", "ROWS", "THEN", "PARTITIONS", "THEN"}}
	for _, d := range p.Datasets {
		rowsNow, now := held(d.Before)
		rowsThen, then := held(d.After)
		t.Add(d.Dataset, words[d.Action], rowsNow, rowsThen, now, then)
	}
	t.Write(w)

	consents := append(given.Consents(), p.Agreed...)
	for _, lost := range p.Cancels {
		fmt.Fprintf(w, "It cancels %s of %s: %s.", plural.Of(int(lost.Tasks), "open task"), lost.Job, lost.Reason)
		if !slices.Contains(consents, contract.CancelTasks) {
			fmt.Fprintf(w, " This %s needs --cancel-tasks.", what)
		}
		fmt.Fprintln(w)
	}
	writeFindings(w, what, p.Findings, consents)
}

// held returns how many rows and partitions a dataset has for readers, empty where it does not serve.
func held(h *deploy.Holdings) (rows, partitions string) {
	if h == nil {
		return "", ""
	}
	return fmt.Sprint(h.Rows), fmt.Sprint(h.Partitions)
}

// previewAbandon prints what becomes of the work of a build if it is abandoned.
func previewAbandon(ctx context.Context, c *cli.CLI, api *cli.Client, dag string) error {
	var found views.DAGDetail
	if err := api.Get(ctx, cli.DAGPath(dag), nil, &found); err != nil {
		return err
	}
	if found.Building == nil || found.Build == nil {
		return fault.New(fault.Conflict, "no version of %s is being built", dag).
			WithHint("`dagctl history %s` lists its versions", dag)
	}

	return c.Print(found.Build, func(w io.Writer) {
		open, kept := found.Build.Open()+found.Build.Dead, ""
		if found.Build.Completed > 0 {
			kept = fmt.Sprintf(" What %s made stays.", plural.Of(int(found.Build.Completed), "completed task"))
		}
		what := fmt.Sprintf("The build of %s v%d would stop.", dag, found.Building.Number)
		if found.Building.Status == registry.Ready {
			what = fmt.Sprintf("%s v%d is built and ready, and would be given up: it could not be promoted any more.",
				dag, found.Building.Number)
		}
		if open > 0 {
			what += fmt.Sprintf(" %s would be canceled, except for those that the active version needs too.",
				plural.Of(int(open), "task"))
		}
		fmt.Fprintln(w, what+kept)
	})
}
