package operators

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators/textfile"
)

// fileSource reads files from the folders that the org's sources may read: a partition per file, or per group of files
// to which its pattern gives the same key. A unit's version is the hash of the content of its files, so a file that is
// touched but not changed is not read again.
//
// `path` is a file or a folder, relative to one of those folders (in `dagctl dev` the folder of the DAG file) or
// absolute inside one. Links cannot lead out of them.
type fileSource struct {
	options Options
	hashes  *hashCache
}

func newFileSource(o Options) *fileSource { return &fileSource{options: o, hashes: newHashCache()} }

const fileSourceSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["path", "format"],
  "properties": {
    "path": {"type": "string", "minLength": 1,
      "description": "A file, or a folder of files, inside one of the folders that the org may read on this server."},
    "pattern": {"type": "string", "minLength": 1,
      "description": "Path in the folder; * and ? match within names; {date}, {month} and others set the key."},` +
	tabularSchema + `
  }
}`

type fileSourceConfig struct {
	tabular
	Path    string `json:"path"`
	Pattern string `json:"pattern"`
}

// fileUnit is the payload of a task: the files of a partition, by their paths within the source's folder.
type fileUnit struct {
	Files []string `json:"files"`
}

func (o *fileSource) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "file_source", Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal,
		Folders:      true,
		Splits:       true,
		ConfigSchema: json.RawMessage(fileSourceSchema),
		Shape:        declaredColumns,
		Reading:      declaredReading,
		CheckJob:     checkFileJob,
		Canonical: func(config map[string]any) (any, *dag.ConfigError) {
			_, err := parseFileConfig(config)
			return config, err
		},
	}
}

// declaredColumns is the Shape of sources whose config may list the columns to keep. Types that it does not list are
// known only once they are read.
func declaredColumns(job *dag.Job, _ [][]dag.Column) (shape dag.Shape, err error) {
	list, _ := job.Config["columns"].([]any)
	columns := make([]dag.Column, 0, len(list))
	for _, name := range list {
		text, _ := name.(string)
		columns = append(columns, dag.Column{Name: text, Type: declaredType(job.Config, text)})
	}
	if len(columns) > 0 {
		shape.Writes = [][]dag.Column{columns}
		return shape, nil
	}

	types, _ := job.Config["types"].(map[string]any)
	for _, name := range sortedKeys(types) {
		if declared := declaredType(job.Config, name); declared != "" {
			shape.Types = append(shape.Types, dag.Column{Name: name, Type: declared})
		}
	}
	return shape, nil
}

// declaredType returns the type that a config gives to a column of text files; empty if it gives none.
func declaredType(config map[string]any, column string) string {
	types, _ := config["types"].(map[string]any)
	text, _ := types[column].(string)
	if text == "" || config["format"] == "parquet" {
		return ""
	}
	t, err := textfile.ParseType(text)
	if err != nil || strings.Contains(t.String(), "?") { // some of it is known only once it is read
		return ""
	}
	return t.String()
}

// checkFileJob is the CheckJob. It refuses a pattern whose files could never be given to a partition.
func checkFileJob(job *dag.Job) *dag.ConfigError {
	if err := checkOutputs(job); err != nil {
		return err
	}
	text, _ := job.Config["pattern"].(string)
	if text == "" {
		if job.TasksBy().Kind != dag.Unpartitioned {
			return &dag.ConfigError{Key: "path", Message: fault.Text(errNoPartitions)}
		}
		return nil
	}
	if _, err := exampleOf(text).partition(job.TasksBy()); err != nil {
		return &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	return nil
}

// checkOutputs checks the outputs of sources of files: they have one, and one more for rows that do not fit.
func checkOutputs(job *dag.Job) *dag.ConfigError {
	quarantine := job.Config["on_bad_rows"] == badRowsQuarantine
	switch {
	case quarantine && (len(job.Outputs) != 2 || job.Outputs[1] != badRowsQuarantine):
		return &dag.ConfigError{Key: "on_bad_rows",
			Message: "bad rows go to an output of their own: write `outputs: [rows, quarantine]`"}
	case !quarantine && len(job.Outputs) != 1:
		return &dag.ConfigError{Message: fmt.Sprintf("%s has one output, not %d", job.Operator, len(job.Outputs))}
	}
	return nil
}

// declaredReading is the Reading of sources of files.
func declaredReading(config map[string]any) any {
	var c tabular
	if err := DecodeConfig(config, &c); err != nil {
		return nil
	}
	return c.Declaration
}

func parseFileConfig(config map[string]any) (fileSourceConfig, *dag.ConfigError) {
	var c fileSourceConfig
	if err := DecodeConfig(config, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.check(); err != nil {
		return c, err
	}
	if strings.HasPrefix(strings.ToLower(c.Path), "s3://") {
		return c, &dag.ConfigError{Key: "path", Message: "it is a path in a bucket, which operator s3_source reads: " +
			"write its parts as `bucket`, `prefix` and `pattern`"}
	}

	if name := filepath.FromSlash(c.Path); !filepath.IsAbs(name) && !filepath.IsLocal(name) {
		return c, &dag.ConfigError{Key: "path", Message: fmt.Sprintf("%q leads out of the folders that sources may "+
			"read: give a path inside one of them, relative to it or absolute", c.Path)}
	}
	if _, err := compilePattern(c.Pattern); err != nil {
		return c, &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	return c, nil
}

// Enumerate implements Enumerator.
func (o *fileSource) Enumerate(ctx context.Context, e Enumeration) ([]Unit, error) {
	found, err := o.Resume(ctx, e)
	return found.Units, err
}

// Resume implements Resumer. It lists everything each time.
func (o *fileSource) Resume(ctx context.Context, e Enumeration) (found Listing, err error) {
	c, configFault := parseFileConfig(e.Config)
	if configFault != nil {
		return found, ConfigError(configFault)
	}
	folder, err := openFolder(e.Roots, c)
	if err != nil {
		return found, err
	}
	defer folder.root.Close()

	groups, left, err := folder.groups(ctx, c, e.PartitionBy)
	if err != nil {
		return found, err
	}
	found.LeftOut = left
	for _, key := range sortedKeys(groups) {
		unit, err := o.unit(ctx, folder, key, groups[key], e.Now)
		if err != nil {
			return found, err
		}
		if unit != nil {
			found.Units = append(found.Units, *unit)
		}
	}
	return found, nil
}

// unit returns the unit of some files, without those deleted since they were listed. It returns nil if none is left.
func (o *fileSource) unit(
	ctx context.Context, folder *folder, key string, listed []string, now time.Time,
) (*Unit, error) {
	slices.Sort(listed)
	var names, contents []string
	for _, name := range listed {
		content, err := o.hashes.hash(ctx, folder.root, name, now)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		names, contents = append(names, name), append(contents, content)
	}

	if len(names) == 0 {
		return nil, nil
	}
	payload, err := json.Marshal(fileUnit{Files: names})
	return &Unit{Partition: key, Version: unitVersion(names, contents), Payload: payload}, err
}

// unitVersion returns the hash of the content alone if there is one file, so that it may be renamed. For several files
// it hashes names and contents, because the order of the files is that of their names.
func unitVersion(names, contents []string) string {
	if len(contents) == 1 {
		return "sha256:" + contents[0]
	}
	h := sha256.New()
	for i, name := range names {
		fmt.Fprintf(h, "%s %q\n", contents[i], name)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Run copies the unit's files, hashing them on the way, and reads the copies. So the version describes what was read,
// whatever happens to the files meanwhile.
func (o *fileSource) Run(ctx context.Context, t *Task) (Result, error) {
	c, configFault := parseFileConfig(t.Config)
	if configFault != nil {
		return Result{}, Permanent(ConfigError(configFault))
	}
	folder, err := openFolder(t.Roots, c)
	if err != nil {
		return Result{}, err
	}
	defer folder.root.Close()

	names, err := o.names(ctx, t, c, folder)
	if err != nil {
		return Result{}, err
	}
	files, contents := make([]textfile.File, len(names)), make([]string, len(names))
	for i, name := range names {
		t.Progress(50*i/len(names), "copying "+name)
		files[i] = textfile.File{Name: name,
			Path: filepath.Join(t.Scratch, fmt.Sprintf("%05d.%s%s", i, c.Format, compression(name)))}
		if contents[i], err = copyHashed(ctx, folder.root, name, files[i].Path); err != nil {
			return Result{}, fmt.Errorf("read %s: %w", name, err)
		}
	}

	t.Progress(50, "reading rows")
	found, err := reads{c.tabular, o.options, t}.convert(ctx, files)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", strings.Join(names[:min(3, len(names))], ", "), err)
	}
	found.Files = names
	result, err := json.Marshal(found)
	return Result{Result: result, SourceVersion: unitVersion(names, contents), Reading: found.reading,
		From: strings.Join(names[:min(3, len(names))], ", ")}, err
}

// names returns the files of the task's unit. A task that was created without an enumeration reads those of its
// partition.
func (o *fileSource) names(ctx context.Context, t *Task, c fileSourceConfig, folder *folder) ([]string, error) {
	var unit fileUnit
	if len(t.Payload) > 0 {
		if err := json.Unmarshal(t.Payload, &unit); err != nil {
			return nil, Permanent(fault.New(fault.Invalid, "payload: %w", err))
		}
	}
	if len(unit.Files) > 0 {
		return unit.Files, nil
	}
	groups, _, err := folder.groups(ctx, c, t.TasksBy())
	if err != nil {
		return nil, err
	}

	key := dag.WholeKey
	if t.Partition != nil {
		key = t.Partition.Key
	}
	names := groups[key]
	if len(names) == 0 {
		return nil, fault.New(fault.NotFound, "there is no file for partition %q", key)
	}

	slices.Sort(names)
	return names, nil
}

// copyHashed copies a file out of the folder and returns the hash of the copied bytes.
func copyHashed(ctx context.Context, root *os.Root, name, target string) (string, error) {
	source, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer source.Close()
	copied, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(copied, h), contextReader{ctx, source})
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, copied.Close())
}

// openRegular opens a regular file. A device or a pipe could block forever.
func openRegular(root *os.Root, name string) (*os.File, error) {
	info, err := root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, sourceError(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "%s is not a regular file", name)
	}
	f, err := root.Open(filepath.FromSlash(name))
	return f, sourceError(name, err)
}

func sourceError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "file %s does not exist", name)
	}
	return err
}

// contextReader stops a copy soon after ctx ends.
type contextReader struct {
	ctx    context.Context
	reader io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.reader.Read(p)
}

// settled is the age from which a file's mtime is trusted. Clocks of file systems tick coarsely, so a younger file may
// change again with the same mtime.
const settled = 2 * time.Second
