package parquetexport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators/fence"
)

// The names of a partition's files beside those of its rows. Readers of folders skip names that begin with an
// underscore.
const (
	claimName    = "_dagctl.json"
	manifestName = "_manifest.json"
	partPrefix   = "part-" // of the files of a partition that is several
)

const format = "dagctl-export-1"

// manifest says what a whole partition is.
type manifest struct {
	Format    string `json:"format"`
	Job       string `json:"job"` // ORG/DAG/JOB
	Partition string `json:"partition"`
	fence.Write

	Rows    int64        `json:"rows"`
	Columns []dag.Column `json:"columns"`
	Files   []file       `json:"files"` // in the order of their rows
}

type file struct {
	Name   string `json:"name"`
	Rows   int64  `json:"rows"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Content is the hash of the file as it was made, which is the same for the same rows.
	Content string `json:"content"`
	ETag    string `json:"etag,omitempty"` // in a bucket
}

// claim is the newest write of a partition that has begun.
type claim struct {
	Job       string `json:"job"`
	Partition string `json:"partition,omitempty"` // empty in claims of earlier releases
	fence.Write
}

// target is the folder of a partition.
type target interface {
	// read returns a small file, and its tag; without a tag there is none.
	read(ctx context.Context, name string) (text []byte, tag string, err error)
	// set puts a small file in the place of the one with a tag, or where there is none. Its error is errChanged if
	// another one is there.
	set(ctx context.Context, name string, text []byte, tag string) error
	// put writes a file whose name no other attempt has, unless holds fails, and returns its ETag, if it has one.
	put(ctx context.Context, name, local string, holds func(context.Context) error) (etag string, err error)
	// swap puts a file in the place of another, unless holds fails. Nobody whose claim is newer has put one there
	// since.
	swap(ctx context.Context, name, local string, holds func(context.Context) error) (etag string, err error)
	// has reports whether a file is there as it was written.
	has(ctx context.Context, f file) (bool, error)
	// parts returns the names of the files that begin with partPrefix.
	parts(ctx context.Context) ([]string, error)
	remove(ctx context.Context, name string) error
	close()
}

var errChanged = errors.New("the file has changed")

// export is one attempt to write a partition.
type export struct {
	target   target
	manifest manifest
	local    []string // its files
	scratch  string
	one      bool // the partition is one file, of a name that does not change
}

// run writes the partition. Readers find the one before or this one, each of them whole: a partition that is one file
// by that file, and others by the manifest. unchanged reports that the target has these rows already.
func (e *export) run(ctx context.Context) (unchanged bool, err error) {
	was, err := e.claim(ctx)
	if err != nil {
		return errors.Is(err, errThere), notThere(err)
	}
	last, err := e.last(ctx)
	if err != nil {
		return false, err
	}
	// A write that has not ended may still put its file, so only what an ended one has put is kept.
	same := last.Task == was.Task && last.Attempt == was.Attempt
	if same {
		if same, err = e.same(ctx, last); err != nil {
			return false, err
		}
	}

	// Those that are there now are of older writes: a newer one would have claimed the partition first.
	stale, err := e.target.parts(ctx)
	if err != nil {
		return false, err
	}
	for _, f := range last.Files {
		stale = append(stale, f.Name)
	}
	if !e.one {
		stale = append(stale, wholeName)
	}
	if same {
		e.manifest.Files = last.Files
	} else if err := e.place(ctx); err != nil {
		e.takeBack(ctx)
		return false, err
	}
	if err := e.publish(ctx); err != nil {
		// Its answer may have been lost, and then readers may have it.
		if m, lost := e.last(ctx); !same && lost == nil && fault.Is(err, fault.Conflict) &&
			(m.Task != e.manifest.Task || m.Attempt != e.manifest.Attempt) {
			e.takeBack(ctx)
		}
		return false, err
	}
	return same, e.clean(ctx, stale)
}

// publish puts the manifest in the place of the last one.
func (e *export) publish(ctx context.Context) error {
	text, err := json.MarshalIndent(e.manifest, "", "  ")
	if err != nil {
		return err
	}
	local := filepath.Join(e.scratch, manifestName)
	if err := os.WriteFile(local, append(text, '\n'), 0o600); err != nil {
		return err
	}
	_, err = e.target.swap(ctx, manifestName, local, e.holds)
	return err
}

// last returns the manifest that is there; the zero manifest: none.
func (e *export) last(ctx context.Context) (m manifest, err error) {
	text, tag, err := e.target.read(ctx, manifestName)
	if err != nil || tag == "" {
		return m, err
	}
	foreign := func(f file) bool {
		return f.Name != wholeName && (!strings.HasPrefix(f.Name, partPrefix) || strings.ContainsAny(f.Name, `/\`))
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Format != format || slices.ContainsFunc(m.Files, foreign) {
		return manifest{}, nil // somebody damaged it: it is written anew
	}
	return m, nil
}

// same reports whether the target has the rows of this write, as files that nobody touched.
func (e *export) same(ctx context.Context, last manifest) (bool, error) {
	if !slices.EqualFunc(last.Files, e.manifest.Files, func(a, b file) bool {
		return a.Content == b.Content && (a.Name == wholeName) == (b.Name == wholeName)
	}) {
		return false, nil
	}
	for _, f := range last.Files {
		if there, err := e.target.has(ctx, f); err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

// errThere says that a later write has put the rows of this one there.
var errThere = errors.New("a later write has the same rows")

func notThere(err error) error {
	if errors.Is(err, errThere) {
		return nil
	}
	return err
}

// claim makes this write the newest one, and returns the one before. An older one is a fault.Conflict, or errThere.
func (e *export) claim(ctx context.Context) (was claim, err error) {
	const tries = 20 // as often as others claim it at the same time
	own := claim{e.manifest.Job, e.manifest.Partition, e.manifest.Write}
	text, err := json.Marshal(own)
	if err != nil {
		return was, err
	}

	for range tries {
		var tag string
		if was, tag, err = e.claimed(ctx); err != nil {
			return was, err
		}
		if tag != "" {
			if err := e.mayFollow(ctx, own, was); err != nil {
				return was, err
			}
		}
		if err := e.target.set(ctx, claimName, text, tag); !errors.Is(err, errChanged) {
			return was, err
		}
	}
	return was, fault.New(fault.Unavailable, "others claim partition %s again and again", e.manifest.Partition)
}

// mayFollow returns an error if a write is not newer than the one that has claimed the partition.
func (e *export) mayFollow(ctx context.Context, own, was claim) error {
	switch {
	case was.Job != own.Job:
		return fault.New(fault.Conflict, "job %.200q exports to this path", was.Job).
			WithHint("give each job a path of its own; if this job takes the place of that one, remove the files %s "+
				"below the path", claimName)
	case was.Partition != "" && was.Partition != own.Partition:
		return fault.New(fault.Conflict, "partition %.200q is exported to this path, and partition %.200q would "+
			"overwrite it", was.Partition, own.Partition).
			WithHint("put {partition} into config.path; if this partition takes the place of that one, remove the "+
				"file %s below the path", claimName)
	case own.Before(was.Write):
		return e.outdated()
	case !own.Same(was.Write) || !own.Earlier(was.Write):
		return nil
	}

	// A later task or attempt of the same revisions: if it has ended with these rows, there is nothing to do.
	last, err := e.last(ctx)
	if err != nil {
		return err
	}
	same, err := e.same(ctx, last)
	switch {
	case err != nil:
		return err
	case same && last.Same(own.Write):
		return errThere
	}
	return e.outdated()
}

// claimed returns the claim that is there; without a tag there is none.
func (e *export) claimed(ctx context.Context) (c claim, tag string, err error) {
	text, tag, err := e.target.read(ctx, claimName)
	if err != nil || tag == "" {
		return c, tag, err
	}
	if err := json.Unmarshal(text, &c); err != nil || c.Job == "" {
		return c, tag, fault.New(fault.Invalid, "file %s is not as dagctl wrote it", claimName).
			WithHint("remove it, once no task exports the partition")
	}
	return c, tag, nil
}

func (e *export) outdated() error {
	return fault.New(fault.Conflict, "a newer revision of partition %s is exported already", e.manifest.Partition)
}

// holds fails unless this write is the newest one that has begun.
func (e *export) holds(ctx context.Context) error {
	is, tag, err := e.claimed(ctx)
	if err == nil && (tag == "" || is.Task != e.manifest.Task || is.Attempt != e.manifest.Attempt) {
		return e.outdated()
	}
	return err
}

// place writes the files of the rows.
func (e *export) place(ctx context.Context) (err error) {
	put := e.target.put
	if e.one {
		put = e.target.swap
	}
	for i := range e.manifest.Files {
		f := &e.manifest.Files[i]
		if f.ETag, err = put(ctx, f.Name, e.local[i], e.holds); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	return nil
}

// takeBack removes the files that a write has begun and that no manifest lists: those of names that are its own.
func (e *export) takeBack(ctx context.Context) {
	if e.one {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, f := range e.manifest.Files {
		if err := e.target.remove(ctx, f.Name); err != nil {
			return // the next write does it
		}
	}
}

// clean removes files that were there before and are no part of the partition.
func (e *export) clean(ctx context.Context, stale []string) error {
	slices.Sort(stale)
	for _, name := range slices.Compact(stale) {
		if slices.ContainsFunc(e.manifest.Files, func(f file) bool { return f.Name == name }) {
			continue
		}
		if !strings.HasPrefix(name, partPrefix) { // the name may be one of a newer write
			if err := e.holds(ctx); err != nil {
				return err
			}
		}
		if err := e.target.remove(ctx, name); err != nil {
			return fmt.Errorf("remove %s, which is replaced: %w", name, err)
		}
	}
	return nil
}
