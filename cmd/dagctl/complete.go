package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// completionTime is how long a shell waits for names from the server, unless DAGCTL_COMPLETION_TIME says otherwise.
const completionTime = time.Second

// completions are the most names that a shell is told.
const completions = 200

// completer returns the words that begin with what is typed; args are the arguments before it.
type completer func(ctx context.Context, api *cli.Client, args []string, typed string) ([]string, bool)

// completeNames lets shells complete arguments and flags with what the server has. Where there is no server, or it says
// no, they complete nothing.
func completeNames(c *cli.CLI, root *cobra.Command) {
	byWord := map[string]completer{"DAG": dagNames, "[DAG]": dagNames, "DAG/JOB": jobNames, "DAG[/JOB]": jobNames,
		"TASK": taskNames, "[TASK...]": taskNames, "TASK|DATASET|DATASET@PARTITION|JOB": whyNames,
		"DATASET": datasetNames, "DATASET[.COLUMN]": datasetNames, "PARTITION": partitionNames, "V1": versionNames,
		"V2": versionNames, "VERSION": versionNames, "[VERSION]": versionNames}
	byCommand := map[string]completer{"datasets": datasetNames, "secrets": secretNames}
	versionBy := map[string]completer{"pin": versionsToPin, "unpin": versionsPinned, "promote": versionsToPromote}
	byFlag := map[string]completer{"dag": dagNames, "partition": partitionNames, "job": jobsOfFlag,
		"to": versionsBefore}

	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		words := strings.Fields(cmd.Use)[1:]
		complete := make([]completer, len(words))
		for i, word := range words {
			complete[i] = byWord[word]
			if word == "NAME" && cmd.HasParent() {
				complete[i] = byCommand[cmd.Parent().Name()]
			}
			if f := versionBy[cmd.Name()]; f != nil && strings.Trim(word, "[]") == "VERSION" {
				complete[i] = f
			}
		}
		if len(words) > 0 && slices.ContainsFunc(complete, func(f completer) bool { return f != nil }) {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) (
				[]string, cobra.ShellCompDirective) {
				at := len(args)
				if last := len(words) - 1; at > last && strings.HasSuffix(words[last], "...]") {
					at = last
				}
				if at >= len(complete) {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return ask(c, cmd, complete[at], args, typed)
			}
		}
		for flag, f := range byFlag {
			if cmd.Flags().Lookup(flag) == nil {
				continue
			}
			if flag == "to" && cmd.Name() != "rollback" { // of others it is a time or a partition
				continue
			}
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, args []string, typed string) (
				[]string, cobra.ShellCompDirective) {
				if dag, err := cmd.Flags().GetString("dag"); err == nil && dag != "" {
					args = append([]string{dag}, args...)
				}
				return ask(c, cmd, f, args, typed)
			})
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(root)
}

// ask asks the server for words.
func ask(c *cli.CLI, cmd *cobra.Command, f completer, args []string, typed string) (
	[]string, cobra.ShellCompDirective) {
	none := cobra.ShellCompDirectiveNoFileComp
	target, err := c.ResolveTarget()
	if err != nil || f == nil {
		return nil, none
	}
	within := completionTime
	if given, err := time.ParseDuration(c.Getenv("DAGCTL_COMPLETION_TIME")); err == nil {
		within = given
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()

	words, goesOn := f(ctx, cli.NewClient(target), args, typed)
	words = slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, typed) })
	slices.Sort(words)
	words = slices.Compact(words)
	if goesOn && len(words) > 0 {
		none |= cobra.ShellCompDirectiveNoSpace
	}
	return words[:min(len(words), completions)], none
}

// named is what has a name.
type named struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// list returns the names of a list, and none where there is an error.
func list(ctx context.Context, api *cli.Client, path string, query url.Values) []string {
	found, err := cli.Fetch[named](ctx, api, path, query, cli.Page{Limit: completions})
	if err != nil {
		return nil
	}
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = n.Name + n.Key
	}
	return names
}

func dagNames(ctx context.Context, api *cli.Client, _ []string, _ string) ([]string, bool) {
	return list(ctx, api, "/v1/dags", nil), false
}

func secretNames(ctx context.Context, api *cli.Client, _ []string, _ string) ([]string, bool) {
	return list(ctx, api, "/v1/secrets", nil), false
}

func datasetNames(ctx context.Context, api *cli.Client, _ []string, typed string) ([]string, bool) {
	query := url.Values{}
	if strings.Contains(typed, "/") {
		query.Set("unpublished", "true")
	}
	return list(ctx, api, "/v1/datasets", query), false
}

// jobNames completes DAG/JOB: first the DAG, then its jobs.
func jobNames(ctx context.Context, api *cli.Client, _ []string, typed string) ([]string, bool) {
	dag, _, ok := strings.Cut(typed, "/")
	if !ok {
		names := list(ctx, api, "/v1/dags", nil)
		for i := range names {
			names[i] += "/"
		}
		return names, true
	}
	names := namesOfJobs(ctx, api, dag)
	for i := range names {
		names[i] = dag + "/" + names[i]
	}
	return names, false
}

// namesOfJobs returns the names of a DAG's jobs.
func namesOfJobs(ctx context.Context, api *cli.Client, dag string) (names []string) {
	var detail views.DAGDetail
	if api.Get(ctx, cli.DAGPath(dag), nil, &detail) != nil {
		return nil
	}
	for _, j := range detail.Jobs {
		names = append(names, j.Name)
	}
	return names
}

// jobsOfFlag completes the job of a flag, of the DAG that another one names.
func jobsOfFlag(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	if len(args) == 0 {
		return nil, false
	}
	return namesOfJobs(ctx, api, args[0]), false
}

// versionNames completes a version of the DAG that is named before it.
func versionNames(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	return versionsOf(ctx, api, args, func(registry.Version) bool { return true }), false
}

// versionsBefore completes a version that served before, and that can serve again.
func versionsBefore(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	return versionsOf(ctx, api, args, func(v registry.Version) bool {
		return v.Status == registry.Superseded && v.ShrunkAt == nil
	}), false
}

// versionsToPin completes a version that serves, may serve or served, and whose data are there.
func versionsToPin(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	return versionsOf(ctx, api, args, func(v registry.Version) bool {
		return v.ShrunkAt == nil && (v.Status == registry.Active || v.Status == registry.Superseded || onItsWay(v))
	}), false
}

// versionsToPromote completes the version that is ready or being built.
func versionsToPromote(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	return versionsOf(ctx, api, args, onItsWay), false
}

func onItsWay(v registry.Version) bool {
	return v.Status == registry.Building || v.Status == registry.Ready
}

// versionsPinned completes a version that is pinned.
func versionsPinned(ctx context.Context, api *cli.Client, args []string, _ string) (names []string, _ bool) {
	if len(args) == 0 {
		return nil, false
	}
	pins, err := cli.FetchWhole[registry.VersionPin](ctx, api, cli.DAGPath(args[0])+"/pins")
	if err != nil {
		return nil, false
	}
	for _, p := range pins {
		names = append(names, fmt.Sprint("v", p.Number))
	}
	return names, false
}

// versionsOf returns the newest versions of a DAG that fit, such as v12.
func versionsOf(
	ctx context.Context, api *cli.Client, args []string, fits func(registry.Version) bool,
) (names []string) {
	if len(args) == 0 {
		return nil
	}
	found, err := cli.Fetch[registry.Version](ctx, api, cli.DAGPath(args[0])+"/versions", nil,
		cli.Page{Limit: completions})
	if err != nil {
		return nil
	}
	for _, v := range found {
		if fits(v) {
			names = append(names, fmt.Sprint("v", v.Number))
		}
	}
	return names
}

// partitionNames completes a partition of what is named before it: of a dataset, of a job, or of a DAG's tasks.
func partitionNames(ctx context.Context, api *cli.Client, args []string, _ string) ([]string, bool) {
	if len(args) == 0 {
		return nil, false
	}
	if dag, job, ok := strings.Cut(args[0], "/"); ok && !strings.Contains(job, "/") {
		return partitionsOf(ctx, api, url.Values{"dag": {dag}, "job": {job}}), false
	}
	if names := list(ctx, api, cli.DatasetPath(args[0])+"/partitions", nil); names != nil {
		return names, false
	}
	return partitionsOf(ctx, api, url.Values{"dag": {args[0]}}), false
}

// partitionsOf returns the partitions of tasks.
func partitionsOf(ctx context.Context, api *cli.Client, query url.Values) (keys []string) {
	found, err := cli.Fetch[views.Task](ctx, api, "/v1/tasks", query, cli.Page{Limit: 500})
	if err != nil {
		return nil
	}
	for _, t := range found {
		if t.Partition != "" {
			keys = append(keys, t.Partition)
		}
	}
	return keys
}

// whyNames completes what `dagctl why` takes: a task, a job, a dataset, or a partition of a dataset after its @.
func whyNames(ctx context.Context, api *cli.Client, args []string, typed string) ([]string, bool) {
	if of, _, ok := strings.Cut(typed, "@"); ok && strings.Count(of, "/") != 1 {
		keys := list(ctx, api, cli.DatasetPath(of)+"/partitions", nil)
		for i := range keys {
			keys[i] = of + "@" + keys[i]
		}
		return keys, false
	}
	names, goesOn := taskNames(ctx, api, args, typed)
	datasets, _ := datasetNames(ctx, api, args, typed)
	return append(names, datasets...), goesOn
}

// taskNames completes the address of a task: an id, or DAG/JOB@PARTITION, whose partitions come after the @.
func taskNames(ctx context.Context, api *cli.Client, _ []string, typed string) ([]string, bool) {
	if of, _, ok := strings.Cut(typed, "@"); ok {
		dag, job, _ := strings.Cut(of, "/")
		keys := partitionsOf(ctx, api, url.Values{"dag": {dag}, "job": {job}})
		for i := range keys {
			keys[i] = of + "@" + keys[i]
		}
		return keys, false
	}
	if strings.Contains(typed, "/") {
		return jobNames(ctx, api, nil, typed)
	}

	names, _ := jobNames(ctx, api, nil, typed)
	found, err := cli.Fetch[views.Task](ctx, api, "/v1/tasks", nil, cli.Page{Limit: 50})
	for _, t := range found {
		if err == nil && typed != "" {
			names = append(names, t.ID.String())
		}
	}
	return names, len(names) > 0 && typed == ""
}
