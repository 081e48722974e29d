package query

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// ofBytes matches what DuckDB says of a Parquet file whose bytes are not those that were written.
var ofBytes = late.Pattern(`Failed to read file|TProtocolException|Invalid Error|Invalid unicode|IO Error|` +
	`read input ".*": [A-Z][a-zA-Z ]* Error`)

// blame returns the error of a statement or, if a file that it reads is damaged, that of its dataset: DuckDB blames the
// statement for both.
func (q *Query) blame(ctx context.Context, caller authz.Caller, read []registry.Readable, err error) error {
	if err == nil {
		return nil
	}
	bytes := ofBytes.MatchString(err.Error())
	if !fault.Is(err, fault.Invalid) && !bytes {
		return err
	}

	for _, d := range read {
		if q.Storage.Copies(d.Generation.Kind) {
			continue
		}
		opened, failed := q.Storage.Open(ctx, d.Generation, d.Partitions, "")
		if failed != nil {
			return q.lost(ctx, d.Generation, d.Name, q.missingIn(ctx, d.Generation, d.Partitions), failed)
		}
		key, damaged := damagedIn(d.Partitions, opened)
		if damaged == nil && bytes {
			key, damaged = q.unreadable(ctx, caller, d.Partitions, opened)
		}
		if damaged != nil {
			return q.lost(ctx, d.Generation, d.Name, key, damaged)
		}
	}
	return err
}

// missingIn returns the first partition whose files cannot be opened; empty: that is not known.
func (q *Query) missingIn(ctx context.Context, g storage.Generation, partitions []storage.Partition) string {
	if q.Storage.Copies(g.Kind) {
		return ""
	}
	for _, p := range partitions {
		if _, err := q.Storage.Open(ctx, g, []storage.Partition{p}, ""); fault.Is(err, fault.NotFound) {
			return p.Key
		}
	}
	return ""
}

// damagedIn returns an error about the first file that is not as long as it was committed, and its partition.
func damagedIn(partitions []storage.Partition, opened [][]string) (key string, err error) {
	for i, p := range partitions {
		for n, path := range opened[i] {
			info, err := os.Stat(path)
			if err == nil && info.Size() != p.Files[n].Bytes {
				return p.Key, fault.New(fault.NotFound, "file %s of partition %q is damaged: it has %d bytes, not %d",
					p.Files[n].Path, p.Key, info.Size(), p.Files[n].Bytes)
			}
		}
	}
	return "", nil
}

// unreadable returns an error about the first file that cannot be read to its end, and its partition. It reads all
// files, in an engine of its own: an engine has one statement of a user, and what that did may have changed it.
func (q *Query) unreadable(
	ctx context.Context, caller authz.Caller, partitions []storage.Partition, opened [][]string,
) (key string, err error) {
	l := q.Limits
	g, err := q.Engines.Take(ctx, engine.Purpose{Kind: engine.Query, Org: caller.OrgID.String(), Of: as(caller),
		Limits: relations.Limits{Memory: l.Memory, Threads: l.Threads},
		CPU:    time.Duration(l.Threads)*l.Timeout + 5*time.Second})
	if err != nil {
		return "", nil //nolint:nilerr // the statement has an error already, which stays
	}
	defer g.Discard()

	for i, p := range partitions {
		for n, path := range opened[i] {
			inside, err := g.In(path)
			if err != nil {
				return "", nil //nolint:nilerr // as above
			}
			var out engine.RowsRead
			err = g.Stream(ctx, engine.Rows{Scope: relations.UTC, SQL: "SELECT bit_xor(hash(f)) FROM f AS f", Rows: 1,
				Relations: []relations.Relation{{Name: "f", Files: inside}}, Bytes: l.Bytes}, io.Discard, 1<<20, &out)
			if err == nil {
				err = out.Failed.Err()
			}
			if err != nil && ctx.Err() == nil && ofBytes.MatchString(err.Error()) {
				return p.Key, fault.New(fault.NotFound, "file %s of partition %q is damaged: its bytes are not those "+
					"that were written", p.Files[n].Path, p.Key)
			}
		}
	}
	return "", nil
}

// lost tells that files of a dataset are gone or damaged from that there is no such dataset. An empty key means that it
// is not known which partition lacks them.
func (q *Query) lost(ctx context.Context, g storage.Generation, dataset, key string, err error) error {
	if fault.Is(err, fault.Unavailable) { // it has been told
		return err
	}
	if !fault.Is(err, fault.NotFound) && !engine.Deterministic(err) && !ofBytes.MatchString(err.Error()) {
		return err
	}

	remake, failed := q.Registry.Remake(ctx, g, dataset, key)
	if failed != nil {
		return failed
	}
	if key != "" {
		dataset += "@" + key
	}
	return fault.New(fault.Unavailable, "a file of dataset %s cannot be read: %w", dataset, err).
		WithHint("an admin can restore it%s; `dagctl doctor --verify-files` finds files that are gone or cut short",
			remake)
}
