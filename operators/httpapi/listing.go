package httpapi

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// listing is all pages of what the API lists. It writes their rows as NDJSON.
type listing struct {
	*conversation
	out   *bufio.Writer
	hash  hash.Hash // of what was written
	line  bytes.Buffer
	pages int
	rows  int64
	bytes int64          // of all answers
	seen  map[string]int // what shows that pages repeat → the number of the page
}

func newListing(talk *conversation, out io.Writer) *listing {
	l := &listing{conversation: talk, hash: sha256.New(), seen: map[string]int{}}
	l.out = bufio.NewWriterSize(io.MultiWriter(out, l.hash), 1<<16)
	return l
}

func (l *listing) close() error { return l.out.Flush() }

// readAll reads one page after the other. It is an error if there are more than may be read: a part of a listing is not
// published.
func (l *listing) readAll(ctx context.Context) error {
	next := l.start()
	file := filepath.Join(l.task.Scratch, "page.json")
	for next != nil {
		if l.pages == l.MaxPages {
			return operators.Permanent(fault.New(fault.TooLarge, "%s lists more than %d pages", l.first.Host,
				l.MaxPages).WithHint("raise config.max_pages"))
		}
		l.pages++
		l.task.Progress(0, fmt.Sprintf("asking %s for page %d, after %d rows", l.first.Host, l.pages, l.rows))
		answered, err := l.get(ctx, next, file, l.MaxBytes-l.bytes)
		if err != nil {
			return err
		}
		l.bytes += answered.bytes

		p, sum, err := l.read(answered, file)
		if err != nil {
			return err
		}
		if next, err = l.follow(next, answered, p, sum); err != nil {
			return err
		}
	}
	return nil
}

// start returns the address of the first page.
func (l *listing) start() *url.URL {
	switch l.Pagination.By {
	case byPage:
		return l.with(l.Pagination.Param, l.number())
	case byOffset:
		return l.with(l.Pagination.Param, 0)
	}
	return l.first
}

// number returns the number of the page that is next, where pages are counted.
func (l *listing) number() int64 {
	first := int64(1)
	if l.Pagination.First != nil {
		first = *l.Pagination.First
	}
	return first + int64(l.pages)
}

// with returns the first address with another value of a parameter.
func (l *listing) with(param string, value any) *url.URL {
	u := *l.first
	query := u.Query()
	query.Set(param, fmt.Sprint(value))
	u.RawQuery = query.Encode()
	return &u
}

// read writes the rows of an answer, and returns what it says and the hash of its rows.
func (l *listing) read(answered answer, file string) (page, string, error) {
	if answered.empty {
		return page{}, "", nil
	}
	sum := sha256.New()
	d := document{records: l.Records, next: l.Pagination.Path, more: l.Pagination.More,
		single: l.Pagination.By == ""}
	d.row = func(text []byte) error {
		l.rows++
		if l.MaxRows > 0 && l.rows > l.MaxRows {
			return operators.Permanent(fault.New(fault.TooLarge, "%s lists more than %d rows", l.first.Host, l.MaxRows).
				WithHint("raise config.max_rows"))
		}
		l.line.Reset()
		if err := json.Compact(&l.line, text); err != nil {
			return err
		}
		l.line.WriteByte('\n')
		sum.Write(l.line.Bytes())
		_, err := l.out.Write(l.line.Bytes())
		return err
	}

	p, err := d.readPage(file)
	var known *fault.Error
	if err != nil && !errors.As(err, &known) {
		// An answer that is no listing may be one the next time.
		err = fault.New(fault.Unavailable, "page %d of %s %w", l.pages, l.first.Host, err)
	}
	return p, string(sum.Sum(nil)), err
}

// follow returns the address of the next page; nil: there is none.
func (l *listing) follow(at *url.URL, answered answer, p page, rows string) (*url.URL, error) {
	way := l.Pagination
	if p.more != nil && !*p.more {
		return nil, nil
	}

	switch way.By {
	case byLink:
		return l.address(answered, nextLink(answered.header))
	case byNextURL:
		return l.named(p, answered)
	case byCursor:
		if p.next == "" || p.rows == 0 && at.Query().Get(way.Param) == p.next {
			return nil, l.promised(p)
		}
		return l.with(way.Param, p.next), l.once("leads back to", p.next)
	case byPage, byOffset:
		return l.counted(p, rows)
	}
	return nil, nil
}

// counted returns the address of the next page where pages or rows are counted. A page without rows is the last, unless
// it says otherwise.
func (l *listing) counted(p page, rows string) (*url.URL, error) {
	next := l.number()
	if l.Pagination.By == byOffset {
		next = l.rows
	}
	switch {
	case p.rows > 0:
		return l.with(l.Pagination.Param, next), l.once("has the same rows as", rows)
	case p.more != nil && l.Pagination.By == byPage:
		return l.with(l.Pagination.Param, next), nil
	}
	return nil, l.promised(p)
}

// named returns the address that an answer names as that of the next page.
func (l *listing) named(p page, answered answer) (*url.URL, error) {
	if p.next == "" {
		return nil, l.promised(p)
	}
	return l.address(answered, p.next)
}

// promised returns an error if an answer promises a page and names none.
func (l *listing) promised(p page) error {
	if p.more == nil {
		return nil
	}
	return fault.New(fault.Unavailable, "page %d of %s says that there are more, and leads to none", l.pages,
		l.first.Host)
}

// once refuses a page that shows that the pages repeat.
func (l *listing) once(how, mark string) error {
	before, again := l.seen[mark]
	l.seen[mark] = l.pages
	if !again {
		return nil
	}
	return operators.Permanent(fault.New(fault.Invalid, "the pages of %s do not end: page %d %s page %d",
		l.first.Host, l.pages, how, before).
		WithHint("check config.pagination: the API may take no notice of its `param`"))
}

// address returns an address that an answer names, from which it may be relative; nil for none. It must be of the host
// that the config names, because all requests carry its secrets. Those that are parameters are added where it lacks
// them.
func (l *listing) address(answered answer, text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := answered.url.Parse(text)
	switch {
	case err != nil:
		return nil, fault.New(fault.Unavailable, "page %d of %s names a next page that is no URL", l.pages,
			l.first.Host)
	case !sameOrigin(u, l.first):
		return nil, operators.Permanent(fault.New(fault.Forbidden, "page %d of %s leads to %s://%s, which is not asked",
			l.pages, l.first.Host, u.Scheme, u.Host).
			WithHint("name that address in config.url, if it is the right one; or count pages"))
	}

	u.User, u.Fragment = nil, ""
	query := u.Query()
	for name, values := range l.keys {
		if !query.Has(name) {
			query[name] = values
			u.RawQuery = query.Encode()
		}
	}
	return u, l.once("leads back to", u.String())
}

// sameOrigin reports whether two addresses have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// nextLink returns the address of a Link header (RFC 8288) that is the next page; empty: there is none.
func nextLink(header http.Header) string {
	for _, rest := range header.Values("Link") {
		for {
			_, after, found := strings.Cut(rest, "<")
			if !found {
				break
			}

			target, params, _ := strings.Cut(after, ">")
			var link string
			if link, rest = upTo(params, ','); isNext(link) {
				return strings.TrimSpace(target)
			}
		}
	}
	return ""
}

// isNext reports whether the parameters of a link name it the next page.
func isNext(params string) bool {
	for params != "" {
		var param string
		param, params = upTo(params, ';')
		name, value, _ := strings.Cut(param, "=")
		relations := strings.Fields(strings.Trim(strings.TrimSpace(value), `"`))
		if strings.EqualFold(strings.TrimSpace(name), "rel") &&
			slices.ContainsFunc(relations, func(rel string) bool { return strings.EqualFold(rel, "next") }) {
			return true
		}
	}
	return false
}

// upTo cuts a text at the first separator that is not in quotes.
func upTo(text string, separator byte) (before, after string) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}
