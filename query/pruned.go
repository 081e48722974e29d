package query

import (
	"slices"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// pruned returns datasets without the partitions that a statement does not read: see duck.Select.Partitions. Of mixed
// ones all are read, because older files may have columns that a * shows.
func pruned(datasets []registry.Readable, names []engine.Reading) []registry.Readable {
	list := slices.Clone(datasets)
	for i, d := range list {
		if names[i].Partitions == nil || d.Mixed || !known(d) {
			continue
		}
		list[i].Partitions = slices.DeleteFunc(slices.Clone(d.Partitions), func(p storage.Partition) bool {
			left := !names[i].Partitions.Hold(p.Key)
			if left {
				list[i].Bytes -= bytesOf(p)
			}
			return left
		})
	}
	return list
}

// known reports whether the columns of a dataset are known, and none is the key of a partition.
func known(d registry.Readable) bool {
	return len(d.Columns) > 0 && !slices.ContainsFunc(d.Columns, func(c storage.Column) bool {
		return sqltext.Same(c.Name, relations.Partition)
	})
}

// alike reports whether the files of a dataset surely have the same columns: the columns of a partition with several
// files may be those of some, and what is copied out of tables has no files.
func alike(d registry.Readable) bool {
	return !d.Mixed && len(d.Columns) > 0 && slices.ContainsFunc(d.Partitions, hasFile) &&
		!slices.ContainsFunc(d.Partitions, func(p storage.Partition) bool { return len(p.Files) > 1 })
}

func hasFile(p storage.Partition) bool { return len(p.Files) > 0 }

func bytesOf(p storage.Partition) (bytes int64) {
	for _, f := range p.Files {
		bytes += f.Bytes
	}
	return bytes
}
