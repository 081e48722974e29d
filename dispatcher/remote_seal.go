package dispatcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// The server seals the uploads of attempts outside of it as an operator's files are sealed in its own process, and so
// it seals the files that a run in this process commits on its way. Each commit has locations of its own, which are
// recorded before anything is written: a commit that is repeated or breaks off never meets the files of the other try.

// sealing is an output partition of a commit, with its files.
type sealing struct {
	output int
	key    string           // output partition; empty for a segment of a cursor, whose rows give its key
	files  []storage.Upload // of an attempt elsewhere
	local  []string         // of a run in this process, which may still write to them: they are copied
}

// partitionOf returns the output partition for which an attempt commits an output: the task's own if it has one, or the
// one that the request names, as sources do that make many partitions.
func (attempt *RemoteAttempt) partitionOf(o protocol.CommittedOutput) (string, error) {
	by := attempt.Job.Def.PartitionBy
	own := attempt.Assignment.Partition

	switch {
	case by.Kind == dag.ByCursor:
		if o.Partition != "" {
			return "", fmt.Errorf("the rows of a segment give its positions: leave the partition out")
		}
		return "", nil
	case attempt.Job.Def.Splits() && o.Partition != "" && o.Partition != dag.WholeKey:
		return "", fmt.Errorf("the rows give their partitions: leave the partition out")
	case attempt.Job.Def.Splits():
		return dag.WholeKey, nil
	case own != nil && o.Partition != "" && o.Partition != own.Key:
		return "", fmt.Errorf("this task makes partition %q, not %q", own.Key, o.Partition)
	case own != nil:
		return own.Key, nil
	case o.Partition == "":
		return dag.WholeKey, by.Valid(dag.WholeKey)
	}
	return o.Partition, by.Valid(o.Partition)
}

// placements finds the output partitions of a commit's outputs, and gathers the problems of the request.
type placements struct {
	attempt  *RemoteAttempt
	seen     map[string]bool
	problems []fault.Problem
}

func (p *placements) wrong(where, format string, args ...any) {
	p.problems = append(p.problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
}

// place returns the sealing for an output, without its files. Where the output is wrong it adds a problem and returns
// false.
func (p *placements) place(where string, o protocol.CommittedOutput) (s sealing, ok bool) {
	if o.Index < 0 || o.Index >= len(p.attempt.Assignment.Outputs) {
		count := len(p.attempt.Assignment.Outputs)
		p.wrong(where+".index", "the job has %d outputs, none with index %d", count, o.Index)
		return s, false
	}

	key, err := p.attempt.partitionOf(o)
	if err != nil {
		p.wrong(where+".partition_key", "%v", err)
		return s, false
	}

	if name := fmt.Sprintf("%d/%s", o.Index, key); p.seen[name] {
		p.wrong(where, "output %d is named twice for this partition", o.Index)
	} else {
		p.seen[name] = true
	}
	return sealing{output: o.Index, key: key}, true
}

// sealings returns the output partitions of a commit with their uploads, and the problems of all of them. onTheWay is
// set for an attempt that goes on afterwards.
func (d *Dispatcher) sealings(
	ctx context.Context, attempt *RemoteAttempt, outputs []protocol.CommittedOutput, onTheWay bool,
) (list []sealing, problems []fault.Problem, err error) {
	p := placements{attempt: attempt, seen: map[string]bool{}}
	for i, o := range outputs {
		where := fmt.Sprintf("body.outputs[%d]", i)
		s, ok := p.place(where, o)
		if !ok {
			continue
		}
		if onTheWay && attempt.Job.Def.Splits() {
			p.wrong(where, "a job that splits its rows commits only with its end")
			continue
		}
		if onTheWay && len(o.Files) == 0 {
			p.wrong(where+".files", "name the files: the server does not know which of them were committed before")
			continue
		}
		files, faults, err := d.uploadsOf(ctx, attempt, o, where)

		if err != nil {
			return nil, nil, err
		}
		s.files, p.problems = files, append(p.problems, faults...)
		list = append(list, s)
	}
	return list, p.problems, nil
}

// uploadsOf returns the uploads that an output names, or all uploads if it names none.
func (d *Dispatcher) uploadsOf(
	ctx context.Context, attempt *RemoteAttempt, o protocol.CommittedOutput, where string,
) (files []storage.Upload, problems []fault.Problem, err error) {
	uploaded, err := d.Storage.ListUploads(ctx, attempt.uploads(o.Index))
	if err != nil || len(o.Files) == 0 {
		return uploaded, nil, err
	}

	for n, f := range o.Files {
		at := slices.IndexFunc(uploaded, func(u storage.Upload) bool { return u.Name == f.Name })
		wrong := func(field, format string, args ...any) {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("%s.files[%d].%s", where, n, field),
				Message: fmt.Sprintf(format, args...)})
		}
		switch {
		case at < 0:
			wrong("name", "this attempt has uploaded no file %q for output %d", f.Name, o.Index)
		case f.ETag != "" && f.ETag != uploaded[at].ETag:
			wrong("etag", "file %q was uploaded with the ETag %s", f.Name, uploaded[at].ETag)
		case slices.Contains(files, uploaded[at]):
			wrong("name", "file %q is named twice", f.Name)
		default:
			files = append(files, uploaded[at])
		}
	}
	return files, problems, nil
}

func (attempt *RemoteAttempt) uploads(output int) storage.UploadKey {
	return storage.UploadKey{Org: attempt.OrgID, Task: attempt.TaskID, Attempt: attempt.Attempt, Output: output}
}

// reserve records the locations of one more commit of the attempt, and returns its number.
func (d *Dispatcher) reserve(ctx context.Context, attempt *RemoteAttempt, list []sealing) (part int, err error) {
	err = pg.InOrgTxByKey(ctx, d.Requests, attempt.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, attempt.Fence)
		if err != nil {
			return err
		}
		if !row.Holds(attempt.Fence) {
			return row.FencedOff(attempt.Fence)
		}

		err = tx.QueryRow(ctx, `
			UPDATE task_attempts SET commits = commits + 1 WHERE task_id = $1 AND attempt = $2 RETURNING commits`,
			attempt.TaskID, attempt.Attempt).Scan(&part)
		if err != nil {
			return err
		}
		var locations []string
		for _, s := range list {
			locations = append(locations, d.Storage.Location(storage.Attempt{
				Generation: attempt.Assignment.Outputs[s.output].Generation,
				Partition:  stale.WrittenAt(attempt.Job, s.key),
				Task:       attempt.TaskID, Number: attempt.Attempt, Output: s.output, Part: part}))
		}
		_, err = tx.Exec(ctx, `
			UPDATE task_attempts SET staging = staging || $3 WHERE task_id = $1 AND attempt = $2`,
			attempt.TaskID, attempt.Attempt, locations)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reserve locations of task %s: %w", attempt.TaskID, err)
	}
	return part, nil
}

// withUnnamed adds the outputs that a completion is silent about, which end without rows: those of the attempt's own
// partition to which it has uploaded nothing, and about which it emits no event.
func (d *Dispatcher) withUnnamed(
	ctx context.Context, attempt *RemoteAttempt, list []sealing, body protocol.Completion,
) ([]sealing, error) {
	for i := range attempt.Assignment.Outputs {
		key, err := attempt.partitionOf(protocol.CommittedOutput{Index: i})
		if err != nil ||
			slices.ContainsFunc(body.Outputs, func(o protocol.CommittedOutput) bool { return o.Index == i }) ||
			slices.ContainsFunc(body.Events, func(e protocol.Event) bool { return e.Output == i }) {
			continue
		}

		uploaded, err := d.Storage.ListUploads(ctx, attempt.uploads(i))
		if err != nil {
			return nil, err
		}
		if len(uploaded) == 0 {
			list = append(list, sealing{output: i, key: key})
		}
	}
	return list, nil
}

// toSeal returns the sealings that publish something. ends is set at the end of the attempt, which empties outputs that
// have no files.
func (d *Dispatcher) toSeal(
	ctx context.Context, attempt *RemoteAttempt, all []sealing, result operators.Result, ends bool,
) (list []sealing, err error) {
	if result.Unchanged {
		return nil, nil
	}
	for _, s := range all {
		if len(s.files)+len(s.local) == 0 {
			stays := !ends || attempt.Assignment.Cursor != nil && result.Cursor == nil
			if !stays {
				if stays, err = d.staysWithoutRows(ctx, attempt.Task, s.key, s.output); err != nil {
					return nil, err
				}
			}
			if stays {
				continue
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// sealUploads seals the files of a commit; ends is set for that of the attempt's end. If the outcome has an Err, the
// files themselves are wrong, and no retry of the call can succeed.
func (d *Dispatcher) sealUploads(
	ctx context.Context, attempt *RemoteAttempt, list []sealing, result operators.Result, ends bool,
) (operators.Outcome, error) {
	list, err := d.toSeal(ctx, attempt, list, result, ends)
	if err != nil {
		return operators.Outcome{}, err
	}
	if result.Unchanged || len(list) == 0 {
		result.Unchanged = result.Unchanged || attempt.Assignment.Cursor != nil // no rows, so no new position
		return operators.Outcome{Result: result}, nil
	}

	part, err := d.reserve(ctx, attempt, list)
	if err != nil {
		return operators.Outcome{}, err
	}

	folder, err := d.Runner.Scratch(attempt.TaskID, attempt.Attempt)
	if err != nil {
		return operators.Outcome{}, err
	}
	defer folder.Remove()

	out := operators.Outcome{Result: result}
	for len(list) > 0 {
		key := list[0].key
		of := slices.DeleteFunc(slices.Clone(list), func(s sealing) bool { return s.key != key })
		list = slices.DeleteFunc(list, func(s sealing) bool { return s.key == key })
		one, err := d.sealPartition(ctx, attempt, key, of, part, result, ends, folder.Path)
		if err != nil || one.Err != nil {
			return one, err
		}
		out.Result, out.Split, out.Written = one.Result, one.Split, append(out.Written, one.Written...)
	}
	return out, nil
}

// sealPartition seals the files of one output partition.
func (d *Dispatcher) sealPartition(
	ctx context.Context, attempt *RemoteAttempt, key string, list []sealing,
	part int, result operators.Result, ends bool, scratch string,
) (operators.Outcome, error) {
	a := attempt.Assignment
	a.Outputs = slices.Clone(a.Outputs)
	a.Part = part
	a.NoRows = noRows{d, &attempt.Task, func(_ context.Context, output int) (bool, error) {
		return !slices.ContainsFunc(list, func(s sealing) bool { return s.output == output }), nil
	}}
	a.Splits = splits{noRows{d: d, t: &attempt.Task}}
	if key != "" && a.Partition == nil && a.SplitBy == "" {
		if err := setPartition(&a, attempt.Job, key); err != nil {
			return operators.Outcome{}, err
		}
		if err := d.assignBases(ctx, attempt, &a); err != nil {
			return operators.Outcome{}, err
		}
	}

	if ends && attempt.lastCall.Hash == "" { // its rows were made by what stood at its claim
		for i, standing := range attempt.standing {
			a.Outputs[i].Standing = standing
		}
	}

	dir, err := os.MkdirTemp(scratch, "partition-*")
	if err != nil {
		return operators.Outcome{}, fmt.Errorf("make scratch folder: %w", err)
	}
	dirs := make([]string, len(a.Outputs))
	for i := range dirs {
		dirs[i] = filepath.Join(dir, fmt.Sprintf("output%d", i))
		if err := os.Mkdir(dirs[i], 0o700); err != nil {
			return operators.Outcome{}, fmt.Errorf("make scratch folder: %w", err)
		}
	}

	for _, s := range list {
		if err := d.fetch(ctx, attempt, s, dir, dirs[s.output]); err != nil {
			return operators.Outcome{}, err
		}
	}

	seal := filepath.Join(dir, "seal")
	if err := os.Mkdir(seal, 0o700); err != nil {
		return operators.Outcome{}, fmt.Errorf("make scratch folder: %w", err)
	}
	out, err := d.Runner.Seal(ctx, a, dirs, result, seal)
	if err != nil && ctx.Err() == nil && operators.IsPermanent(err) {
		return operators.Outcome{Err: err}, nil
	}
	return out, err
}

// fetch brings an output's files into its folder, in the order in which they were named.
func (d *Dispatcher) fetch(ctx context.Context, attempt *RemoteAttempt, s sealing, dir, into string) error {
	for n, file := range s.local {
		if err := copyFile(file, filepath.Join(into, operators.NumberedName(n, file))); err != nil {
			return fmt.Errorf("take over a written file: %w", err)
		}
	}

	fetched := filepath.Join(dir, fmt.Sprintf("fetched%d", s.output))
	if err := os.Mkdir(fetched, 0o700); err != nil {
		return fmt.Errorf("make scratch folder: %w", err)
	}
	local, err := d.Storage.FetchUploads(ctx, attempt.uploads(s.output), s.files, fetched)
	if err != nil {
		if fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) { // it has changed since it was listed
			err = fault.New(fault.Invalid, "%w", err)
		}
		return err
	}

	for n, file := range local {
		if err := os.Rename(file, filepath.Join(into, operators.NumberedName(n, file))); err != nil {
			return fmt.Errorf("take over an uploaded file: %w", err)
		}
	}
	return nil
}

// assignBases sets the revisions that appends to the assignment's partition add to.
func (d *Dispatcher) assignBases(ctx context.Context, attempt *RemoteAttempt, a *operators.Assignment) error {
	return pg.InOrgTx(ctx, d.Requests, attempt.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		a.Outputs, err = assignOutputs(ctx, tx, attempt.Job, partitionOf(*a))
		return err
	})
}
