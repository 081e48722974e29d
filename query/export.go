package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Exported says what is exported, and how: the rows of a dataset, or those of a statement.
type Exported struct {
	Dataset    string
	Where      string   // a condition on the dataset's rows; empty: all
	Partitions []string // of the dataset: keys, and ranges A..B with both ends; empty: all

	SQL    string // in place of Dataset
	At     registry.Moment
	Limit  int // rows; 0: all
	Format Format
}

// Export is an export that has begun: its datasets are pinned, and the audit log has it. It must be closed.
type Export struct {
	q      *Query
	caller authz.Caller
	format Format
	at     registry.Moment
	read   reading

	names   []engine.Reading // of what is read
	asker   *asker
	given   []relations.Relation
	ctx     context.Context // ends with the time that an export may take
	cleanup []func()
}

// streamedAs has how engines write each format.
var streamedAs = map[Format]engine.Streamed{CSV: engine.AsCSV, Parquet: engine.AsParquet, Arrow: engine.AsArrow,
	NDJSON: engine.AsNDJSON}

// Export begins an export. It runs like a statement: see Run. But its rows leave while they are read, so that there may
// be any number of them, and the audit log has it before the first one leaves.
func (q *Query) Export(ctx context.Context, caller authz.Caller, e Exported) (x *Export, err error) {
	if streamedAs[e.Format] == "" {
		return nil, fault.New(fault.Invalid, "%q is no format", e.Format).WithHint("csv, ndjson, parquet or arrow")
	}
	s, err := q.statementOf(ctx, caller, &e)
	if err != nil {
		return nil, err
	}

	release, err := q.exports.take(caller.OrgID.String())
	if err != nil {
		return nil, err
	}
	x = &Export{q: q, caller: caller, format: e.Format, at: e.At, cleanup: []func(){release}}
	defer func() {
		if err != nil {
			x.Close()
			x, err = nil, fmt.Errorf("export: %w", err)
		}
	}()

	var cancel context.CancelFunc
	x.ctx, cancel = context.WithTimeoutCause(ctx, q.Limits.ExportTime, fault.New(fault.TooLarge,
		"the export took longer than the %s that an export may take", q.Limits.ExportTime).
		WithHint("export some of the partitions at a time"))
	x.cleanup = append(x.cleanup, cancel)
	return x, x.begin(s, e)
}

// statementOf returns the statement of an export. It finds out whose version is meant.
func (q *Query) statementOf(ctx context.Context, caller authz.Caller, e *Exported) (Statement, error) {
	s := Statement{SQL: e.SQL, At: e.At, Limit: e.Limit, export: true}
	switch {
	case (e.Dataset == "") == (e.SQL == ""):
		return s, fault.New(fault.Invalid, "an export is of a dataset or of a statement: name one of them")
	case e.Dataset == "" && (e.Where != "" || len(e.Partitions) > 0):
		return s, fault.New(fault.Invalid, "where and partitions are for exports of a dataset").
			WithHint("write a condition into the statement")
	case e.Dataset == "":
		return s, q.check(&s)
	}

	var found registry.Dataset
	err := pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		found, err = q.Registry.FindDataset(ctx, tx, caller, e.Dataset)
		return err
	})
	if err != nil {
		return s, err
	}
	if !e.At.Live() && e.At.DAG == "" {
		e.At.DAG = found.DAG
	}
	s.At, s.SQL = e.At, "SELECT * FROM "+sqltext.Quote(found.Name)
	if e.Where != "" {
		s.SQL += " WHERE (" + e.Where + "\n)"
		s.whole = "SELECT 1 WHERE " + e.Where
	}
	return s, q.check(&s)
}

// begin pins what is exported, gives it to an engine, and writes it down.
func (x *Export) begin(s Statement, e Exported) error {
	a, names, err := x.q.begin(x.ctx, x.caller.OrgID, as(x.caller), relations.UTC, s)
	if err != nil {
		return err
	}
	x.asker, x.names = a, names
	x.cleanup = append(x.cleanup, a.Discard)
	if e.Dataset != "" && len(names) != 1 {
		return fault.New(fault.Invalid, "the condition reads other datasets").
			WithHint("`dagctl query` with --output and --file exports the rows of any statement")
	}

	if err := x.pin(names, e.Partitions); err != nil {
		return err
	}
	out, err := x.columns()
	err = x.blame(err)
	return errors.Join(err, x.writeDown(out, err))
}

// pin pins the datasets, and gives the engine their files.
func (x *Export) pin(names []engine.Reading, partitions []string) (err error) {
	release := func() error { return x.q.release(x.ctx, x.caller, x.read) }
	const tries = 3
	for try := 1; ; try++ {
		if x.read, err = x.q.pin(x.ctx, x.caller, x.at, names, x.q.Limits.ExportTime); err != nil {
			return err
		}
		if len(partitions) > 0 {
			d := &x.read.datasets[0]
			d.Partitions, err = picked(d.Name, d.Partitions, partitions)
		}
		if err == nil {
			x.given, err = x.q.open(x.ctx, pruned(x.read.datasets, names), relations.NamesPartition(x.asker.s.SQL),
				x.asker.Engine)
		}
		if err == nil {
			there, end := x.q.whileThere(x.ctx, x.caller, x.read)
			x.ctx = there
			x.cleanup = append(x.cleanup, func() { _ = release() }, end) // else the hold ends by itself
			return nil
		}

		if !fault.Is(err, fault.Conflict) || try == tries {
			return errors.Join(x.writeDown(outcome{}, err), err, release())
		}
		if err := release(); err != nil {
			return err
		}
	}
}

// picked returns the partitions of some keys and ranges, in their order. A text that is a key is no range, and a list
// of texts with commas between them only if it is no key.
func picked(dataset string, all []storage.Partition, wanted []string) ([]storage.Partition, error) {
	chosen, keys := map[string]bool{}, map[string]bool{}
	for _, p := range all {
		keys[p.Key] = true
	}
	var texts []string
	for _, text := range wanted {
		if keys[text] {
			chosen[text] = true
			continue
		}
		texts = append(texts, strings.Split(text, ",")...)
	}

	for _, text := range texts {
		from, to, isRange := strings.Cut(text, "..")
		if !isRange {
			to = from
		}
		if registry.RefuseReversed(from, to) != nil {
			return nil, fault.New(fault.Invalid, "the range %s ends before it begins", text).
				WithHint("write %s..%s", to, from)
		}

		found := false
		for _, p := range all {
			if isRange && registry.KeyBetween(p.Key, from, to) || p.Key == from {
				chosen[p.Key], found = true, true
			}
		}
		if !found {
			return nil, fault.New(fault.NotFound, "dataset %s has no partition %q", dataset, text).
				WithHint("`dagctl datasets partitions %s` lists them", dataset)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(p storage.Partition) bool { return !chosen[p.Key] }), nil
}

// columns asks for what is read. A statement that cannot run fails here, before a row leaves.
func (x *Export) columns() (out outcome, err error) {
	s := x.asker.s
	err = x.asker.Stream(x.ctx, engine.Rows{Scope: x.asker.scope, SQL: s.SQL, Relations: x.given,
		As: engine.AsNothing}, io.Discard, 1, &out.RowsRead)
	if err == nil {
		err = out.Failed.Err()
	}
	return out, x.asker.failed(err)
}

// writeDown records who exports what.
func (x *Export) writeDown(out outcome, failed error) error {
	u := x.read.use(x.at, out)
	u.Format = x.format
	if failed != nil {
		u.Failed = failure(failed)
	}
	return x.q.whateverHappened(x.ctx, x.caller, func(ctx context.Context, tx pgx.Tx) error {
		return u.write(ctx, tx, x.caller, "query.run")
	})
}

// Write writes the rows, and returns how many there were and whether a limit left some out.
func (x *Export) Write(to io.Writer) (rows int, truncated bool, err error) {
	var out engine.RowsRead
	s := x.asker.s
	err = x.asker.Stream(x.ctx, engine.Rows{Scope: x.asker.scope, SQL: s.SQL, Relations: x.given, Rows: s.Limit,
		As: streamedAs[x.format]}, to, math.MaxInt64, &out)
	if err == nil {
		err = out.Failed.Err()
	}
	return out.Count, out.Truncated, x.blame(x.asker.failed(err))
}

// blame finds out whether an error is that of a file.
func (x *Export) blame(err error) error {
	return x.q.blame(x.ctx, x.caller, pruned(x.read.datasets, x.names), err)
}

// Close ends the export.
func (x *Export) Close() {
	for _, done := range slices.Backward(x.cleanup) {
		done()
	}
	x.cleanup = nil
}

// RowsHeader, which follows an export, says how many rows it has.
const RowsHeader = "Dagctl-Rows"

// exportStall is how long the reader of an export may take nothing.
const exportStall = 2 * time.Minute

type exportInput struct {
	Body struct {
		Dataset    string   `json:"dataset,omitempty" maxLength:"300" doc:"The dataset whose rows are exported"`
		Where      string   `json:"where,omitempty" maxLength:"50000" doc:"A condition on its rows, in SQL"`
		Partitions []string `json:"partitions,omitempty" maxItems:"1000" doc:"Keys, and ranges A..B; default: all"`

		SQL    string `json:"sql,omitempty" maxLength:"100000" doc:"One SELECT, in place of a dataset"`
		At     string `json:"at,omitempty" maxLength:"64" doc:"As of queries"`
		DAG    string `json:"dag,omitempty" maxLength:"200" doc:"As of queries; default: that of the dataset"`
		Limit  int    `json:"limit,omitempty" minimum:"0" doc:"The most rows; 0: all"`
		Format Format `json:"format" enum:"csv,ndjson,parquet,arrow"`
	}
}

func (q *Query) addExport(api *authz.API) {
	content := map[string]*huma.MediaType{}
	for _, media := range []string{MediaCSV, MediaNDJSON, MediaParquet, MediaArrow} {
		content[media] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	authz.Handle(api, authz.Reader, rest.WithTimeout(huma.Operation{
		OperationID: "export", Method: http.MethodPost, Path: "/v1/query/export", Tags: []string{"datasets"},
		Summary: "Export all rows of a dataset, or of one SELECT",
		Description: "Like a query, but without a limit on rows and bytes: rows leave while they are read. An answer " +
			"that ends early is cut off. " + RowsHeader + " and " + TruncatedHeader + " follow the rows.",
		Responses: map[string]*huma.Response{"200": {Content: content}},
	}, 0), q.handleExport)
}

func (q *Query) handleExport(ctx context.Context, caller authz.Caller, in *exportInput) (*queryOutput, error) {
	b := in.Body
	x, err := q.Export(ctx, caller, Exported{Dataset: b.Dataset, Where: b.Where, Partitions: b.Partitions, SQL: b.SQL,
		At: registry.Moment{Which: b.At, DAG: b.DAG}, Limit: b.Limit, Format: b.Format})
	if err != nil {
		return nil, err
	}
	return &queryOutput{x.send}, nil
}

// send answers an operation with the rows, and closes the export.
func (x *Export) send(to huma.Context) {
	defer x.Close()
	rest.Streamed{
		Header: http.Header{"Content-Type": {x.format.Media()}, "Cache-Control": {"no-store"}}, Stall: exportStall,
		Until: x.ctx, Trailers: []string{RowsHeader, TruncatedHeader},
		Write: func(w io.Writer) (http.Header, error) {
			rows, truncated, err := x.Write(w)
			trailer := http.Header{}
			trailer.Set(RowsHeader, strconv.Itoa(rows))
			trailer.Set(TruncatedHeader, strconv.FormatBool(truncated))
			return trailer, err
		},
	}.Send(to)
}
