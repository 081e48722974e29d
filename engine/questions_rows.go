package engine

import "github.com/dagctl/dagctl/internal/relations"

// The questions to engines of kind Copy. All files are inside the engine's folder.
type (
	// CopyOut asks for the rows of files in Postgres's binary COPY format, with their numbers. They are streamed.
	CopyOut struct {
		Files   []string
		Columns []relations.Column
	}

	// CopyIn writes the rows of a file in that format, without numbers; it is answered by how many there are.
	CopyIn struct {
		File    string
		Columns []relations.Column
		Target  string
	}

	// Head writes the first rows of a file.
	Head struct {
		File   string
		Rows   int64
		Target string
	}
)

func (CopyOut) Verb() string { return "copy_out" }
func (CopyIn) Verb() string  { return "copy_in" }
func (Head) Verb() string    { return "head" }
