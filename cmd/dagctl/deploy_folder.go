package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// several reports whether a path stands for the DAG files below it: a folder without one of its own.
func several(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Stat(filepath.Join(path, dagFileName))
	return errors.Is(err, fs.ErrNotExist)
}

// deployFolder deploys every DAG file below a folder, producers first, each once those before it serve, because an input
// from another DAG is bound to what is served. The first that fails ends it.
func (c *cli) deployFolder(ctx context.Context, api *client, dir string, options deployOptions) error {
	if !options.wait || options.noActivate {
		return fault.New(fault.Invalid, "%s holds several DAGs: each is deployed when those it reads serve", dir).
			WithHint("leave out --wait=false and --no-activate, or deploy one DAG at a time")
	}
	vars, err := parseVars(options.vars)
	if err != nil {
		return err
	}
	dags, err := findDAGs(dir, vars)
	if err != nil {
		return err
	}
	for _, d := range dags {
		if len(d.problems) > 0 {
			return c.reportProblems(d.problems)
		}
	}
	if circle := circleOf(dags); circle != nil {
		return fault.New(fault.Conflict, "the DAGs read each other in a circle: %s", strings.Join(circle, " reads ")).
			WithHint("have one of them read something else, or make them one DAG")
	}
	deployments := []registry.Deployment{}
	for i, d := range dags {
		deployed, err := c.deployPath(ctx, api, d.path, options)
		if err != nil {
			c.tellStopped(dags, i)
			return err
		}
		deployments = append(deployments, deployed)
	}
	return c.print(deployments, func(w io.Writer) {
		for _, deployed := range deployments {
			c.writeServing(w, deployed.Version)
		}
	})
}

// tellStopped says which DAGs were deployed, which one failed, and which were not tried.
func (c *cli) tellStopped(dags []*devDAG, failed int) {
	names := make([]string, len(dags))
	for i, d := range dags {
		names[i] = d.doc.Name
	}
	list := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return strings.Join(names, ", ")
	}
	fmt.Fprintf(c.err, "Deployed: %s. Failed: %s. Not tried: %s.\n", list(names[:failed]), names[failed], list(names[failed+1:]))
}

// circleOf finds DAGs that read each other's datasets in a circle; nil where there is none.
func circleOf(dags []*devDAG) []string {
	producers := map[string]*devDAG{}
	for _, d := range dags {
		for _, p := range d.doc.Publish {
			producers[p.Name] = d
		}
	}
	const open, closed = 1, 2
	state := map[*devDAG]int{}
	var way []string
	var visit func(d *devDAG) []string
	visit = func(d *devDAG) []string {
		if state[d] == closed {
			return nil
		}
		way = append(way, d.doc.Name)
		defer func() { way = way[:len(way)-1] }()
		if state[d] == open {
			first := 0
			for way[first] != d.doc.Name {
				first++
			}
			return append([]string{}, way[first:]...)
		}
		state[d] = open
		for _, name := range d.reads() {
			if producer := producers[name]; producer != nil {
				if circle := visit(producer); circle != nil {
					return circle
				}
			}
		}
		state[d] = closed
		return nil
	}
	for _, d := range dags {
		if circle := visit(d); circle != nil {
			return circle
		}
	}
	return nil
}
