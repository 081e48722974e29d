package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/dagctl/dagctl/operators/textfile"
)

// page is what an answer says.
type page struct {
	rows int64
	next string // URL or token of the next page; empty: it names none
	more *bool  // whether there is another; nil: it does not say
}

// document takes an answer apart while it reads it, so that no more than a row is in memory.
type document struct {
	*jsontext.Decoder
	held    *allowance
	records string // path of the list of rows; empty: the whole document
	next    string // path; empty: none
	more    string // path; empty: none
	single  bool   // an answer that is an object is a row
	row     func(text []byte) error

	page
	listed bool
}

// readPage reads an answer from a file, and calls row for each row of it, whose text is valid during the call.
func (d *document) readPage(file string) (page, error) {
	f, err := os.Open(file)
	if err != nil {
		return page{}, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	if mark, _ := in.Peek(3); string(mark) == "\xef\xbb\xbf" {
		_, _ = in.Discard(3)
	}

	d.held = &allowance{in: in}
	d.held.reset()
	// What is wrong with a row is for those to say who read rows.
	d.Decoder = jsontext.NewDecoder(d.held, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := d.value(""); err != nil {
		if d.held.left <= 0 {
			return page{}, errTooLong
		}
		return page{}, syntax(err)
	}
	switch _, err := d.ReadToken(); {
	case err == nil:
		return page{}, errors.New("has more than one JSON value")
	case !errors.Is(err, io.EOF):
		return page{}, syntax(err)
	case !d.listed:
		return page{}, fmt.Errorf("has no list at %q", d.records)
	}
	return d.page, nil
}

// syntax returns the error of a document that is no JSON without what it quotes of it.
func syntax(err error) error {
	var s *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("is no JSON: it ends too early")
	case errors.As(err, &s):
		return fmt.Errorf("is no JSON, at byte %d", s.ByteOffset)
	}
	return err
}

// value reads the value at a path.
func (d *document) value(path string) error {
	kind := d.PeekKind()
	switch {
	case path == d.records && !(path == "" && kind == '{'):
		return d.list(kind)
	case path == "" && d.records == "" && d.single:
		d.listed = true
		return d.record()
	case path == "" && d.records == "":
		return errors.New("is an object and no list of rows: name the list with config.records")
	case path != "" && (path == d.next || path == d.more):
		return d.says(path)
	case kind == '{' && d.leads(path):
		return d.object(path)
	}
	return d.skip()
}

// leads reports whether something is wanted that lies within the object at a path.
func (d *document) leads(path string) bool {
	for _, wanted := range []string{d.records, d.next, d.more} {
		if wanted != "" && (path == "" || strings.HasPrefix(wanted, path+".")) {
			return true
		}
	}
	return false
}

// token reads a token, after which as much as before may be held in memory.
func (d *document) token() (jsontext.Token, error) {
	token, err := d.ReadToken()
	if err == nil {
		d.held.reset()
	}
	return token, err
}

func (d *document) object(path string) error {
	if _, err := d.token(); err != nil {
		return err
	}

	for d.PeekKind() != '}' {
		name, err := d.token()
		if err != nil {
			return err
		}
		inner := name.String()
		if path != "" {
			inner = path + "." + inner
		}
		if err := d.value(inner); err != nil {
			return err
		}
	}
	_, err := d.token()
	return err
}

// list reads the list of rows. A null is a list without rows, as some servers write it.
func (d *document) list(kind jsontext.Kind) error {
	if d.listed {
		return fmt.Errorf("has two lists at %q", d.records)
	}
	switch kind {
	case 'n':
	case '[':
	case 0:
		_, err := d.token()
		return err
	default:
		return fmt.Errorf("has at %q no list of rows", d.records)
	}
	d.listed = true
	if _, err := d.token(); err != nil || kind == 'n' {
		return err
	}

	for d.PeekKind() != ']' {
		if err := d.record(); err != nil {
			return err
		}
	}
	_, err := d.token()
	return err
}

func (d *document) record() error {
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	d.held.reset()
	if text.Kind() != '{' {
		return fmt.Errorf("has a row that is no object, row %d", d.rows+1)
	}
	d.rows++
	return d.row(bytes.TrimSpace(text))
}

// says reads what the answer says of the next page.
func (d *document) says(path string) error {
	token, err := d.token()
	if err != nil {
		return err
	}

	switch kind := token.Kind(); {
	case path == d.more && (kind == 't' || kind == 'f'):
		more := token.Bool()
		d.page.more = &more
	case path == d.more && kind != 'n':
		return fmt.Errorf("has at %q no boolean", path)
	case path == d.next && (kind == '"' || kind == '0'):
		d.page.next = token.String()
	case path == d.next && kind != 'n' && kind != 'f':
		return fmt.Errorf("has at %q no text and no number", path)
	}
	return nil
}

// skip reads to the end of a value, and holds no more of it than a token.
func (d *document) skip() error {
	for depth := 0; ; {
		token, err := d.token()
		if err != nil {
			return err
		}
		switch token.Kind() {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// allowance bounds how much of a reader a decoder holds in memory.
type allowance struct {
	in   io.Reader
	left int
}

var errTooLong = fmt.Errorf("has a row of more than %d MiB", textfile.MaxRow>>20)

// reset allows as much as a row has at most, and what a decoder reads ahead.
func (a *allowance) reset() { a.left = 2 * textfile.MaxRow }

// Read implements io.Reader.
func (a *allowance) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errTooLong
	}
	n, err := a.in.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}
