// Package s3source has the operator s3_source, which reads the objects of a bucket: a partition per object, or per
// group of objects to which its pattern gives the same key.
//
// Vocabulary: the content of an object is what identifies it, its ETag. A group is the objects of a partition, settled
// once the partition was made from all of them as they are. A position is the key up to which all groups are settled.
// It owns no tables.
package s3source

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/bucket"
	"github.com/dagctl/dagctl/operators/textfile"
)

type operator struct {
	dialer *dial.Dialer
}

// New returns the operator. Of the options, it needs the addresses that may be reached.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	return &operator{d}, err
}

// Spec implements operators.Operator.
func (*operator) Spec() dag.OperatorSpec {
	spec := operators.ReadsFiles(dag.OperatorSpec{
		Name: "s3_source", Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal, Splits: true,
		ConfigSchema: json.RawMessage(configSchema),
		Operational: []string{"access_key_id", "secret_access_key", "path_style", "ascending_keys",
			"list_all_every", "max_bytes"},
		SecretsTo: bucket.SecretsTo,
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parse(given)
			return given, err
		},
	})

	outputs := spec.CheckJob
	spec.CheckJob = func(job *dag.Job) *dag.ConfigError {
		if err := outputs(job); err != nil {
			return err
		}
		return checkJob(job)
	}
	return spec
}

// unit is the payload of a task: the keys of a partition's objects.
type unit struct {
	Objects []string `json:"objects"`
}

// Run copies the unit's objects and reads the copies. So the version describes what was read, whatever happens to the
// objects meanwhile.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parse(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return operators.Result{}, err
	}
	b, err := o.open(c, t.SecretTo)
	if err != nil {
		return operators.Result{}, err
	}
	keys, err := objectsOf(ctx, t, b)
	if err != nil {
		return operators.Result{}, err
	}

	t.Progress(0, "copying objects")
	files, contents := make([]textfile.File, len(keys)), make([]string, len(keys))
	group, copying := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, key := range keys {
		files[i] = textfile.File{Name: key, Path: c.Local(t, i, key)}
		group.Go(func() (err error) {
			contents[i], err = b.copy(copying, key, files[i].Path)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return operators.Result{}, err
	}

	t.Progress(50, "reading rows")
	shown := strings.Join(keys[:min(3, len(keys))], ", ")
	read, err := c.Read(ctx, t, files)
	if err != nil {
		return operators.Result{}, fmt.Errorf("%s: %w", shown, err)
	}
	result, err := operators.FileResult(read, keys)
	return operators.Result{Result: result, SourceVersion: operators.FilesVersion(keys, contents),
		Reading: read.Reading, From: shown}, err
}

// objectsOf returns the keys of the task's unit. A task that was created without an enumeration reads those of its
// partition.
func objectsOf(ctx context.Context, t *operators.Task, b *objects) ([]string, error) {
	var u unit
	if len(t.Payload) > 0 {
		if err := json.Unmarshal(t.Payload, &u); err != nil {
			return nil, operators.Permanent(fault.New(fault.Invalid, "payload: %w", err))
		}
	}
	if len(u.Objects) > 0 {
		return u.Objects, b.own(u.Objects)
	}

	groups, _, err := b.groups(ctx, t.TasksBy(), "")
	if err != nil {
		return nil, err
	}
	key := dag.WholeKey
	if t.Partition != nil {
		key = t.Partition.Key
	}
	for _, g := range groups {
		if g.partition == key {
			return g.keys, nil
		}
	}
	return nil, fault.New(fault.NotFound, "there is no object for partition %q", key)
}
