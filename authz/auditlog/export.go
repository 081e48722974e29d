package auditlog

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// The formats of an export, by the name of the parameter.
var media = map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv"}

// Media returns the media type of an export's format, empty for an unknown one.
func Media(format string) string { return media[format] }

// UnsealedHeader says how many entries are not in an export because they were not sealed yet.
const UnsealedHeader = "Dagctl-Audit-Unsealed"

// Line is one entry of an export.
type Line struct {
	OrgID uuid.UUID `json:"org_id"`
	authz.AuditEntry
}

// csvHeader names the fields of a Line in CSV, in order.
var csvHeader = []string{"org_id", "seq", "hash", "id", "at", "actor", "action", "object", "outcome", "detail",
	"request_id"}

// export is an org's sealed entries that a filter selects, in the order of the chain. Each page is read by itself, so
// that a slow reader holds no snapshot: sealed entries do not change.
type export struct {
	requests *pgxpool.Pool
	org      uuid.UUID
	where    string
	args     []any
	last     int64
	page     []authz.AuditEntry // read and not written yet
	waiting  int64              // unsealed entries when it began
}

// newExport reads the first page, so that what is wrong shows itself before an answer begins.
func newExport(ctx context.Context, requests *pgxpool.Pool, caller authz.Caller, f Filter) (x *export, err error) {
	x = &export{requests: requests, org: caller.OrgID}
	x.args = []any{caller.OrgID}
	if x.where, err = f.conditions(&x.args); err != nil {
		return nil, err
	}
	x.args = x.args[1:]

	if err := x.read(ctx); err != nil {
		return nil, err
	}
	err = pg.InOrgTx(ctx, requests, x.org, func(ctx context.Context, tx pgx.Tx) error {
		x.waiting, err = unsealed(ctx, tx, x.org)
		return err
	})
	return x, err
}

// read reads the next page.
func (x *export) read(ctx context.Context) error {
	err := pg.InOrgTx(ctx, x.requests, x.org, func(ctx context.Context, tx pgx.Tx) (err error) {
		x.page, err = sealedAfter(ctx, tx, x.org, x.last, x.where, x.args)
		return err
	})
	if err != nil {
		return fmt.Errorf("export audit log: %w", err)
	}
	return nil
}

// write writes all entries in a format.
func (x *export) write(ctx context.Context, to io.Writer, format string) error {
	put, flush := ndjson(to)
	if format == "csv" {
		put, flush = commas(to)
	}
	for {
		for _, e := range x.page {
			x.last = e.Seq
			if err := put(Line{x.org, e}); err != nil {
				return err
			}
		}
		if len(x.page) < pageSize {
			return flush()
		}
		if err := x.read(ctx); err != nil {
			return err
		}
	}
}

// ndjson writes lines as JSON. The texts in them are as they are stored, and not escaped for HTML.
func ndjson(to io.Writer) (put func(Line) error, flush func() error) {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	return func(l Line) error { return encoder.Encode(l) }, func() error { return nil }
}

// commas writes lines as CSV with a header, in the form of RFC 4180.
func commas(to io.Writer) (put func(Line) error, flush func() error) {
	out := csv.NewWriter(to)
	failed := out.Write(csvHeader)
	put = func(l Line) error {
		if failed != nil {
			return failed
		}
		return out.Write([]string{l.OrgID.String(), strconv.FormatInt(l.Seq, 10), l.Hash, l.ID.String(),
			l.At.UTC().Format(time.RFC3339Nano), l.Actor, l.Action, l.Object, string(l.Outcome), string(l.Detail),
			l.RequestID})
	}
	return put, func() error { out.Flush(); return out.Error() }
}

// send answers a request with the export. An answer that cannot be completed is cut off, so that nobody takes it for
// the whole.
func (x *export) send(to huma.Context, format string) {
	to.SetHeader("Content-Type", media[format])
	to.SetHeader("Cache-Control", "no-store")
	to.SetHeader(UnsealedHeader, strconv.FormatInt(x.waiting, 10))
	to.SetStatus(http.StatusOK)
	if err := x.write(to.Context(), to.BodyWriter(), format); err != nil {
		panic(http.ErrAbortHandler)
	}
}
