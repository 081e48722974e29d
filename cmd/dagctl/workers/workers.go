package workers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/pg"
)

// WorkersCommand returns `dagctl workers` with its subcommands.
func WorkersCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List and drain the processes that run tasks",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(workersListCommand(c), workersDrainCommand(c))
	return cmd
}

func workersListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the processes that run tasks; LEADS marks the leader of the periodic sweeps",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			workers, err := cli.Fetch[dispatcher.Worker](cmd.Context(), api, "/v1/workers", nil, page)
			if err != nil {
				return err
			}

			return c.Print(workers, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{
					"ID", "STATE", "LEADS", "TASKS", "VERSION", "RUNTIMES", "STARTED", "HEARTBEAT", "DRAINED",
				}}
				for _, worker := range workers {
					leads := ""
					if worker.IsLeader {
						leads = "yes"
					}
					tasks := fmt.Sprintf("%d of %d", worker.CurrentTasks, worker.PoolSize)
					state := worker.State
					if worker.Unfit != "" {
						state += ": " + worker.Unfit
					}
					t.Add(worker.ID, state, leads, tasks, cmp.Or(worker.Version, "-"),
						strings.Join(worker.Runtimes, ","),
						cli.Ago(&worker.StartedAt, now), cli.Ago(&worker.LastHeartbeat, now),
						cli.Ago(worker.DrainedAt, now))
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func workersDrainCommand(c *cli.CLI) *cobra.Command {
	var (
		yes         bool
		token       string
		databaseURL string
	)
	cmd := &cobra.Command{
		Use:   "drain ID",
		Short: "Stop a process from claiming tasks",
		Long: `Lets a process finish the tasks that it runs, and claim no more. A server still answers requests and
routes events until it is stopped. If a server has several orgs, the admin of one may not drain it for the others, and
the command needs access to the database.`,
		Example: `  dagctl workers drain web-1-4711-k3x9ab --yes
  dagctl workers drain web-1-4711-k3x9ab --database-url postgres://dagctl@db/dagctl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.Confirm(yes, "Drain worker %s? It claims no more tasks until its process is restarted.",
				args[0]); err != nil {
				return err
			}
			worker, err := drain(cmd.Context(), c, args[0], token, databaseURL)
			if err != nil {
				return err
			}
			return c.Print(worker, func(w io.Writer) {
				fmt.Fprintf(w, "Worker %s claims no more tasks; at its last heartbeat it ran %d.\n",
					worker.ID, worker.CurrentTasks)
			})
		},
	}

	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&token, "worker-token", "", "name of its worker token, if several processes have the ID")
	cmd.Flags().StringVar(&databaseURL, "database-url", "", "PostgreSQL of the server, for its operators")
	return cmd
}

// drain drains a worker, through the API or in the database.
func drain(ctx context.Context, c *cli.CLI, id, token, databaseURL string) (worker dispatcher.Worker, err error) {
	if databaseURL == "" {
		api, err := c.Connect()
		if err != nil {
			return worker, err
		}
		path := "/v1/workers/" + url.PathEscape(id) + ":drain"
		if token != "" {
			path += "?" + url.Values{"token": {token}}.Encode()
		}
		err = api.Post(ctx, path, nil, &worker)
		return worker, err
	}

	pool, err := pg.Open(ctx, databaseURL, pg.WithMaxConns(2))
	if err != nil {
		return worker, err
	}
	defer pool.Close()

	return dispatcher.DrainWorker(ctx, pool, id, token, time.Now())
}
