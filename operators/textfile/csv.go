package textfile

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// field is a value of a CSV row.
type field struct {
	text   []byte
	quoted bool
}

// row is a row of a CSV file. It is valid until the next one is read.
type row struct {
	line   int64 // where it begins, from 1
	fields []field
	text   []byte // as the file has it, without the end of the line
}

// badRow is the error of a row that is not CSV. Reading can go on behind it.
type badRow struct {
	row
	reason string
}

func (e *badRow) Error() string { return fmt.Sprintf("line %d %s", e.line, e.reason) }

// dialect is how a CSV file separates its values.
type dialect struct {
	delimiter []byte
	quote     byte // 0: none
	comment   []byte
	skip      int // lines before the first row
}

// csvReader reads rows by RFC 4180, strictly: no line is skipped but empty ones, and nothing is repaired. Lines end
// with LF or CRLF.
type csvReader struct {
	dialect
	in   *bufio.Reader
	line int64 // lines read so far

	begun bool // a row was read

	buf    []byte // the current row
	fields []field
	arena  []byte // quoted values without their quotes
}

// newCSVReader reads a text in memory with a buffer that is no larger than the text: seeds are small and may be many.
func newCSVReader(in io.Reader, d dialect) *csvReader {
	size := 256 << 10
	if text, ok := in.(interface{ Len() int }); ok {
		size = min(size, text.Len())
	}
	return &csvReader{dialect: d, in: bufio.NewReaderSize(in, size)}
}

// next returns the next row, io.EOF behind the last one, or a *badRow.
func (r *csvReader) next() (row, error) {
	for {
		r.buf, r.fields, r.arena = r.buf[:0], r.fields[:0], r.arena[:0]
		end, err := r.readLine()
		if err != nil {
			return row{}, err
		}
		text := r.buf[:end]
		if r.line <= int64(r.skip) || len(r.comment) > 0 && bytes.HasPrefix(text, r.comment) {
			continue
		}
		if len(text) == 0 {
			return row{line: r.line}, nil
		}
		if !r.begun && bytes.IndexByte(text, '\r') >= 0 { // all of the file would be one row of names
			return row{}, fmt.Errorf("line %d goes on behind a CR: end lines with LF or CRLF", r.line)
		}
		r.begun = true
		if r.quote == 0 || bytes.IndexByte(text, r.quote) < 0 {
			r.split(text)
			return row{r.line, r.fields, text}, nil
		}
		return r.quoted(end)
	}
}

// readLine appends a line with its end to buf, and returns where its end begins.
func (r *csvReader) readLine() (end int, err error) {
	began := len(r.buf)
	for {
		part, err := r.in.ReadSlice('\n')
		r.buf = append(r.buf, part...)
		if len(r.buf) > MaxRow {
			return 0, fmt.Errorf("line %d begins a row of more than %d bytes", r.line+1, MaxRow)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(r.buf) == began:
			return 0, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return 0, err
		}

		r.line++
		end = len(r.buf)
		if end > began && r.buf[end-1] == '\n' {
			end--
		}
		if end > began && r.buf[end-1] == '\r' {
			end--
		}
		return end, nil
	}
}

// split splits a line without quotes.
func (r *csvReader) split(text []byte) {
	for {
		at := bytes.Index(text, r.delimiter)
		if at < 0 {
			r.fields = append(r.fields, field{text: text})
			return
		}
		r.fields = append(r.fields, field{text: text[:at]})
		text = text[at+len(r.delimiter):]
	}
}

// quoted splits a row in which there are quotes. It reads on where a quoted value goes over several lines.
func (r *csvReader) quoted(end int) (row, error) {
	first, at := r.line, 0
	bad := func(reason string) (row, error) {
		return row{}, &badRow{row{line: first, text: r.buf[:end]}, reason}
	}

	var spans []span
	for {
		if at >= end || r.buf[at] != r.quote {
			stop := end
			if n := bytes.Index(r.buf[at:end], r.delimiter); n >= 0 {
				stop = at + n
			}
			if bytes.IndexByte(r.buf[at:stop], r.quote) >= 0 {
				return bad("has a quote inside a value that does not begin with one")
			}
			spans = append(spans, span{at, stop, false})
			if stop == end {
				break
			}
			at = stop + len(r.delimiter)
			continue
		}

		began := len(r.arena)
		var err error
		if at, end, err = r.unquote(at+1, end); errors.Is(err, io.EOF) {
			return row{}, fmt.Errorf("line %d begins a quoted value that never ends", first)
		} else if err != nil {
			return row{}, err
		}

		spans = append(spans, span{began, len(r.arena), true})
		if at == end {
			break
		}
		if !bytes.HasPrefix(r.buf[at:end], r.delimiter) {
			return bad("has text behind a closing quote")
		}
		at += len(r.delimiter)
	}

	for _, s := range spans { // the buffers do not move any more
		from := r.buf
		if s.quoted {
			from = r.arena
		}
		r.fields = append(r.fields, field{from[s.from:s.to], s.quoted})
	}
	return row{first, r.fields, r.buf[:end]}, nil
}

// unquote appends a quoted value to the arena, and returns where the row goes on behind it and where its line ends. It
// reads on where the value goes over several lines.
func (r *csvReader) unquote(at, end int) (behind, newEnd int, err error) {
	for {
		n := bytes.IndexByte(r.buf[at:end], r.quote)
		if n < 0 {
			r.arena = append(r.arena, r.buf[at:]...)
			at = len(r.buf)
			if end, err = r.readLine(); err != nil {
				return at, end, err
			}
			continue
		}

		r.arena = append(r.arena, r.buf[at:at+n]...)
		at += n + 1
		if at == end || r.buf[at] != r.quote {
			return at, end, nil
		}
		r.arena = append(r.arena, r.quote)
		at++
	}
}

// span is a value: in the arena if it was quoted, in the row's text otherwise.
type span struct {
	from, to int
	quoted   bool
}

// delimiters are those that a file is tried with if none is declared.
var delimiters = []string{",", ";", "\t", "|"}

const sniffRows = 200

// sniffDelimiter returns the delimiter with which the most of the first rows have as many values as the first one, and
// more than one. A file of one column has the comma.
func sniffDelimiter(open func() (io.ReadCloser, error), d dialect) (string, error) {
	best, most, widest := ",", 0, 1
	for _, candidate := range delimiters {
		d.delimiter = []byte(candidate)
		in, err := open()
		if err != nil {
			return "", err
		}
		same, width := agreeing(newCSVReader(in, d))
		if err := in.Close(); err != nil {
			return "", err
		}
		if width > 1 && (same > most || same == most && width > widest) {
			best, most, widest = candidate, same, width
		}
	}
	return best, nil
}

// agreeing returns how many of the first rows have as many values as the first.
func agreeing(r *csvReader) (same, width int) {
	for range sniffRows {
		row, err := r.next()
		var bad *badRow
		switch {
		case errors.As(err, &bad):
			continue
		case err != nil:
			return same, width
		case len(row.fields) == 0:
			continue
		case width == 0:
			width = len(row.fields)
		}
		if len(row.fields) == width {
			same++
		}
	}
	return same, width
}

// columnNames returns the names of columns from a first line: empty names become columnN, and a name that came before
// gets a number, as in DuckDB. A name that stands since an earlier file, letter for letter, comes before all others, so
// that the numbers do not depend on the order of the columns.
func columnNames(fields []field, standing []string) []string {
	names := make([]string, len(fields))
	taken := make(map[string]bool, len(fields))
	stands := make(map[string]bool, len(standing))
	for _, name := range standing {
		stands[name] = true
	}
	for i, f := range fields {
		name := string(bytes.TrimSpace(f.text))
		if stands[name] && !taken[sqltext.Lower(name)] {
			names[i], taken[sqltext.Lower(name)] = name, true
		}
	}

	tried := map[string]int{}
	for i, f := range fields {
		if names[i] != "" {
			continue
		}
		name := cmp.Or(string(bytes.TrimSpace(f.text)), fmt.Sprintf("column%d", i))
		base := name
		for taken[sqltext.Lower(name)] { // a million columns may have one name
			tried[base]++
			name = fmt.Sprintf("%s_%d", base, tried[base])
		}
		names[i], taken[sqltext.Lower(name)] = name, true
	}
	return names
}

// numberedNames are the names of columns in a file without a line of names.
func numberedNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("column%d", i)
	}
	return names
}
