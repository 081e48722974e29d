package parquetcompact

import (
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// rows are those of files, one file after the other.
type rows struct {
	files []string
	ends  []int64 // by file: how many rows it and those before it have
}

func rowsOf(files []string) (all rows, err error) {
	all.files = files
	end := int64(0)
	for _, file := range files {
		have, err := footer.Read(file)
		if err != nil {
			return all, err
		}
		end += have.Rows
		all.ends = append(all.ends, end)
	}
	return all, nil
}

// part is rows that follow each other: those of some files, without the first ones.
type part struct {
	files []string
	skip  int64 // how many rows of the first file come before
	rows  int64
}

// cut returns the rows from one place up to, but without, another one, and only the files that have some of them. So
// each file is opened for the parts that it has rows of, and no part reads what lies before its first file.
func (all rows) cut(from, to int64) part {
	p := part{rows: to - from}
	start := int64(0)
	for i, end := range all.ends {
		if end > max(from, start) && start < to {
			if len(p.files) == 0 {
				p.skip = from - start
			}
			p.files = append(p.files, all.files[i])
		}
		start = end
	}
	if len(p.files) == 0 && len(all.files) > 0 {
		p.files = all.files[:1] // no rows, of these columns
	}
	return p
}

// isRowNumber reports whether a column has the name that DuckDB gives the places of rows.
func isRowNumber(c relations.Column) bool { return sqltext.Same(c.Name, "file_row_number") }
