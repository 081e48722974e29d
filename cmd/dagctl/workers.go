package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/pg"
)

func (c *cli) workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the processes that run tasks, and drain one",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.workersListCommand(), c.workersDrainCommand())
	return cmd
}

func (c *cli) workersListCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the processes that run tasks; LEADS marks the one that leads the periodic sweeps",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			workers, err := fetch[dispatcher.Worker](cmd.Context(), api, "/v1/workers", nil, page)
			if err != nil {
				return err
			}
			return c.print(workers, func(w io.Writer) {
				now := time.Now()
				t := table{style: c.style(c.out), header: []string{"ID", "STATE", "LEADS", "TASKS", "VERSION", "RUNTIMES", "STARTED", "HEARTBEAT", "DRAINED"}}
				for _, worker := range workers {
					leads := ""
					if worker.IsLeader {
						leads = "yes"
					}
					t.add(worker.ID, worker.State, leads, strconv.Itoa(worker.CurrentTasks)+" of "+strconv.Itoa(worker.PoolSize), cmp.Or(worker.Version, "-"),
						strings.Join(worker.Runtimes, ","), ago(&worker.StartedAt, now), ago(&worker.LastHeartbeat, now), ago(worker.DrainedAt, now))
				}
				t.write(w)
			})
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) workersDrainCommand() *cobra.Command {
	var (
		yes         bool
		databaseURL string
	)
	cmd := &cobra.Command{
		Use:   "drain ID",
		Short: "Have a process claim no more tasks",
		Long: `Has a process finish the tasks that it runs and claim no more. It goes on serving requests and routing events until
it is stopped. Where a server has several orgs, no admin of one of them may do that to the others: whoever runs the server
names the database.`,
		Example: `  dagctl workers drain web-1-4711-k3x9ab --yes
  dagctl workers drain web-1-4711-k3x9ab --database-url postgres://dagctl@db/dagctl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.confirm(yes, "Drain worker %s? It claims no more tasks until its process is started anew.", args[0]); err != nil {
				return err
			}
			worker, err := c.drain(cmd.Context(), args[0], databaseURL)
			if err != nil {
				return err
			}
			return c.print(worker, func(w io.Writer) {
				fmt.Fprintf(w, "Worker %s claims no more tasks; it ran %d when last heard of.\n", worker.ID, worker.CurrentTasks)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&databaseURL, "database-url", "", "PostgreSQL, for whoever runs the server")
	return cmd
}

func (c *cli) drain(ctx context.Context, id, databaseURL string) (worker dispatcher.Worker, err error) {
	if databaseURL == "" {
		api, err := c.connect()
		if err != nil {
			return worker, err
		}
		err = api.post(ctx, "/v1/workers/"+url.PathEscape(id)+":drain", nil, &worker)
		return worker, err
	}
	pool, err := pg.Open(ctx, databaseURL, pg.WithMaxConns(2))
	if err != nil {
		return worker, err
	}
	defer pool.Close()
	return dispatcher.DrainWorker(ctx, pool, id, time.Now())
}
