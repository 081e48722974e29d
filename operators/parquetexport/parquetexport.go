// Package parquetexport has the operator parquet_export, which writes the rows of its input as Parquet files for
// readers who do not know dagctl: to a bucket, or to a folder of the server.
//
// Vocabulary: the target is the folder of one partition, on a disk or in a bucket. The claim is a small file there that
// names the newest write that has begun; it changes only by compare-and-set, and whoever does not hold it replaces
// nothing. The manifest is the file that says what a whole partition is: its files and what they were made from. It
// owns no tables.
package parquetexport

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/fence"
)

const operatorName = "parquet_export"

type operator struct {
	dialer *dial.Dialer
	roots  map[string][]string // org → folders that it may write
	heed   sync.Map            // see objects

	partBytes int64
}

// New returns the operator. Of the options, it needs the addresses that may be reached and the folders of orgs.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	return &operator{dialer: d, roots: o.ExportRoots, partBytes: partBytes}, err
}

// Spec implements operators.Operator.
func (*operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: operatorName, Version: "1.0.0", Reactive: true, Effect: dag.EffectExternal,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  slices.Concat(bucketKeys, []string{"folder"}),
		CheckJob:     checkJob, CheckPartitions: checkPartitions,
		SecretsTo: secretsTo, Shape: shape,
		Targets: func(dagName string, job *dag.Job) []dag.Target { return targets(nil, dagName, job) },
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parseConfig(given)
			return given, err
		},
	}
}

// ForOrg implements operators.PerOrg: it refuses folders that the server does not give to the org, and knows where the
// others are.
func (o *operator) ForOrg(c dag.Catalog, org dag.Org) dag.Catalog {
	if org.Slug == "" {
		return c
	}

	known := c.Operators[operatorName]
	known.CheckJob = func(job *dag.Job) *dag.ConfigError {
		if err := checkJob(job); err != nil {
			return err
		}
		c, err := parseConfig(job.Config)
		if err != nil || c.Folder == "" {
			return err
		}
		if _, _, err := within(o.roots[org.Slug], c.Folder); err != nil {
			return &dag.ConfigError{Key: "folder", Message: fault.Hinted(err).Error()}
		}
		return nil
	}
	known.Targets = func(dagName string, job *dag.Job) []dag.Target {
		return targets(o.roots[org.Slug], dagName, job)
	}
	c.Operators = maps.Clone(c.Operators)
	c.Operators[operatorName] = known
	return c
}

// exported is what a run reports.
type exported struct {
	Path      string `json:"path"`
	Files     int    `json:"files"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	Unchanged bool   `json:"unchanged,omitempty"` // the target had these rows already
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (result operators.Result, err error) {
	c, configFault := parseConfig(t.Config)
	if configFault != nil {
		return result, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if len(t.Inputs) != 1 {
		return result, fault.New(fault.Invalid, "parquet_export exports one input")
	}
	key := dag.WholeKey
	if t.Partition != nil {
		key = t.Partition.Key
	}
	path, err := c.layout.folder(t.PartitionBy, key, t.DAG, t.Job)
	if err != nil {
		return result, err
	}

	m := manifest{Format: format, Job: fmt.Sprintf("%s/%s/%s", t.OrgSlug, t.DAG, t.Job), Partition: key,
		Write: fence.Of(t)}
	local, err := c.write(ctx, t, &m)
	if err != nil {
		return result, err
	}
	w, err := o.open(c, t, path) // not before there is something to put there: it may make a folder
	if err != nil {
		return result, err
	}
	defer w.close()

	t.Progress(50, "writing to "+path)
	e := &export{target: w, manifest: m, local: local, scratch: t.Scratch, one: c.MaxRows == 0}
	unchanged, err := e.run(ctx)
	if fault.Is(err, fault.Conflict) {
		err = operators.Permanent(err)
	}
	if err != nil {
		if c.Folder != "" {
			path = c.Folder + "/" + path
		}
		return result, fmt.Errorf("export to %s: %w", path, err)
	}
	done := exported{Path: path, Files: len(m.Files), Rows: m.Rows, Unchanged: unchanged}
	for _, f := range m.Files {
		done.Bytes += f.Bytes
	}
	result.Result, err = json.Marshal(done)
	return result, err
}

// open returns the target of a partition.
func (o *operator) open(c config, t *operators.Task, path string) (target, error) {
	if c.Folder == "" {
		return o.openBucket(c, t, path)
	}
	return openFolder(o.roots[t.OrgSlug], c.Folder, path, fmt.Sprintf("%s-%d", t.TaskID, t.Attempt))
}
