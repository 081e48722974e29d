package workerapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Running attempts read and write data through the server, so that they need neither storage credentials nor a Parquet
// library.

var contentTypes = map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv",
	"parquet": "application/vnd.apache.parquet", "arrow": "application/vnd.apache.arrow.stream"}

func (a *API) addDataRoutes(api *authz.API) {
	index := &huma.Param{Name: "index", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeInteger}}
	format := func(of []string) *huma.Param {
		return &huma.Param{Name: "format", In: "query",
			Description: "Default: the extension of the file's name, or ndjson",
			Schema:      &huma.Schema{Type: huma.TypeString, Enum: anys(of)}}
	}
	authz.HandleTaskRaw(api, carryingFiles(huma.Operation{
		OperationID: "read-task-input", Method: http.MethodGet, Path: "/v1/task/inputs/{index}", Tags: taskTags,
		Summary:     "Read the rows of an input, as they were pinned at the claim",
		Description: "Without the rows that the job's `where` excludes.",
		Parameters: []*huma.Param{index, format(operators.ExportFormats), {Name: "partition", In: "query",
			Schema:      &huma.Schema{Type: huma.TypeString},
			Description: "Only rows of this partition"}},
	}), 0, a.sparing(a.readInput))

	authz.HandleTaskRaw(api, carryingFiles(huma.Operation{
		OperationID: "write-task-output", Method: http.MethodPut, Path: "/v1/task/outputs/{index}/{file}",
		Tags:    taskTags,
		Summary: "Upload a file of an output",
		Description: "Rows of text become Parquet. No reader sees them before the attempt completes. The same " +
			"content may be sent again; other content under the same name is 409.",
		Parameters: []*huma.Param{index, {Name: "file", In: "path", Required: true,
			Schema: &huma.Schema{Type: huma.TypeString}}, format(operators.Formats), {Name: "columns", In: "query",
			Schema: &huma.Schema{Type: huma.TypeString},
			Description: "Of text: a JSON list of columns and their types, such as [{\"name\": \"id\", \"type\": " +
				"\"BIGINT\"}]. The others, and those of type ?, have the types that their values show. " +
				"Without rows, the output has these columns, with the types that it had last where it had them"}},
	}), a.storage.MaxUpload(), a.sparing(a.writeOutput))

	authz.HandleTaskRaw(api, carryingFiles(huma.Operation{
		OperationID: "read-task-code", Method: http.MethodGet, Path: "/v1/task/udf", Tags: taskTags,
		Summary: "Read the job's own code, as a zip archive", Description: "For operator udf.",
	}), 0, a.readCode)
	authz.HandleTask(api, huma.Operation{
		OperationID: "task-credentials", Method: http.MethodPost, Path: "/v1/task/credentials", Tags: taskTags,
		Summary: "Get storage credentials for fifteen minutes",
		Description: "To read the pinned inputs and to put new objects under the attempt's prefixes. 404 where the " +
			"server has none to give.",
	}, a.credentials)

	authz.HandleTask(api, huma.Operation{
		OperationID: "task-query", Method: http.MethodPost, Path: "/v1/task/query", Tags: taskTags,
		Summary: "Run one SELECT over the pinned inputs", Description: "Each input is a relation with its name.",
	}, a.query)
}

// sparing returns a handler that answers 503 where the storage is to blame, so that the worker makes the call again.
func (a *API) sparing(
	handle func(http.ResponseWriter, *http.Request, authz.Capability) error,
) func(http.ResponseWriter, *http.Request, authz.Capability) error {
	return func(w http.ResponseWriter, r *http.Request, c authz.Capability) error {
		err := handle(w, r, c)
		return cmp.Or(a.dispatcher.Spared(r.Context(), c.TaskID, err), err)
	}
}

func anys(of []string) (list []any) {
	for _, s := range of {
		list = append(list, s)
	}
	return list
}

// carryingFiles declares an operation whose body or answer is data: it takes as long as that passes, and headers carry
// the fence.
func carryingFiles(op huma.Operation) huma.Operation {
	op = rest.WithTimeout(op, rest.Transfer)
	text := &huma.Schema{Type: huma.TypeString}
	op.Parameters = append(op.Parameters,
		&huma.Param{Name: protocol.TaskHeader, In: "header", Required: true, Schema: text},
		&huma.Param{Name: protocol.AttemptHeader, In: "header", Required: true,
			Schema: &huma.Schema{Type: huma.TypeInteger}},
		&huma.Param{Name: protocol.LeaseTokenHeader, In: "header", Required: true, Schema: text})
	return op
}

// given returns the attempt that the headers name.
func (a *API) given(r *http.Request, c authz.Capability) (dispatcher.RemoteAttempt, error) {
	f, err := authz.FenceOf(r, c)
	if err != nil {
		return dispatcher.RemoteAttempt{}, err
	}
	return a.dispatcher.RunningAttempt(r.Context(), c, f)
}

// pathIndex reads the index of one of n inputs or outputs from the path.
func pathIndex(r *http.Request, what string, n int) (int, error) {
	i, err := strconv.Atoi(r.PathValue("index"))
	if err != nil || i < 0 || i >= n {
		return 0, fault.New(fault.NotFound, "the task has no %s %q; it has %d, counted from 0", what,
			r.PathValue("index"), n)
	}
	return i, nil
}

func formatOf(r *http.Request, file string, known []string) (string, error) {
	format := r.URL.Query().Get("format")
	if format == "" {
		if format = strings.TrimPrefix(path.Ext(file), "."); format == "" || file == "" {
			format = "ndjson"
		}
	}
	if !slices.Contains(known, format) {
		return "", fault.New(fault.Invalid, "format %q is not one of %s", format, strings.Join(known, ", "))
	}
	return format, nil
}

func (a *API) readInput(w http.ResponseWriter, r *http.Request, c authz.Capability) error {
	g, err := a.given(r, c)
	if err != nil {
		return err
	}
	i, err := pathIndex(r, "input", len(g.Assignment.Inputs))
	if err != nil {
		return err
	}

	format, err := formatOf(r, "", operators.ExportFormats)
	if err != nil {
		return err
	}
	in := g.Assignment.Inputs[i]
	if key := r.URL.Query().Get("partition"); key != "" {
		all := in.Partitions
		in.Partitions = slices.DeleteFunc(slices.Clone(all), func(p storage.Partition) bool { return p.Key != key })
		if len(in.Partitions) == 0 {
			return fault.New(fault.NotFound, "partition %q of input %q was not pinned for this task", key, in.As)
		}
	}

	dir, err := a.runner.Scratch(g.TaskID, g.Attempt)
	if err != nil {
		return err
	}
	defer dir.Remove()

	file, err := a.runner.Export(r.Context(), g.Assignment, in, format, dir.Path)
	if err != nil {
		return err
	}
	return send(w, file, contentTypes[format])
}

func send(w http.ResponseWriter, file, contentType string) error {
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.Copy(w, content) // the reader sees by the length if it is cut short
	return nil
}

func (a *API) writeOutput(w http.ResponseWriter, r *http.Request, c authz.Capability) error {
	g, err := a.given(r, c)
	if err != nil {
		return err
	}
	i, err := pathIndex(r, "output", len(g.Assignment.Outputs))
	if err != nil {
		return err
	}

	key := storage.UploadKey{Org: g.OrgID, Task: g.TaskID, Attempt: g.Attempt, Output: i, Name: r.PathValue("file")}
	if err := storage.ValidateUploadName(key.Name); err != nil {
		return err
	}
	format, err := formatOf(r, key.Name, operators.Formats)
	if err != nil {
		return err
	}

	columns, err := columnsOf(r, format)
	if err != nil {
		return err
	}

	var answer struct {
		storage.Upload
		Columns []storage.Column `json:"columns,omitempty"` // of rows that came as text
	}
	if format == "parquet" {
		answer.Upload, err = a.storage.PutUpload(r.Context(), key, r.Body)
	} else {
		sent := operators.TextRows{Output: i, Format: format, Columns: columns}
		answer.Upload, answer.Columns, err = a.importRows(r.Context(), g.Assignment, key, sent, r.Body)
	}
	if err != nil {
		return err
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return json.NewEncoder(w).Encode(answer)
}

// columnsOf returns the columns that an upload of text declares.
func columnsOf(r *http.Request, format string) (columns []storage.Column, err error) {
	text := r.URL.Query().Get("columns")
	if text == "" {
		return nil, nil
	}
	if format == "parquet" {
		return nil, fault.New(fault.Invalid, "columns are for ndjson and csv: a Parquet file has types of its own")
	}
	if err := json.Unmarshal([]byte(text), &columns); err != nil {
		return nil, fault.New(fault.Invalid, "columns is a JSON list of objects with `name` and `type`")
	}
	return columns, nil
}

// importRows converts rows of text to Parquet and keeps that under the file's name with .parquet appended, or with
// .empty.parquet if there are no rows. It returns the columns that they have.
func (a *API) importRows(
	ctx context.Context, of operators.Assignment, key storage.UploadKey, sent operators.TextRows, rows io.Reader,
) (kept storage.Upload, columns []storage.Column, err error) {
	dir, err := a.runner.Scratch(key.Task, key.Attempt)
	if err != nil {
		return kept, nil, err
	}
	defer dir.Remove()

	sent.Local = filepath.Join(dir.Path, "rows."+sent.Format)
	target := filepath.Join(dir.Path, "rows.parquet")
	file, err := os.Create(sent.Local)
	if err != nil {
		return kept, nil, err
	}
	_, err = io.Copy(file, rows)
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return kept, nil, fmt.Errorf("receive %s: %w", key.Name, err)
	}

	count, columns, err := a.runner.Import(ctx, of, sent, target)
	if err != nil {
		return kept, nil, err
	}
	content, err := os.Open(target)
	if err != nil {
		return kept, nil, err
	}
	defer content.Close()

	if len(sent.Columns) > 0 {
		sent.Format = "csv" // whose names stand without rows, too
	}
	key.Name = operators.ImportedName(key.Name, sent.Format, count)
	if err := storage.ValidateUploadName(key.Name); err != nil {
		return kept, nil, err
	}
	kept, err = a.storage.PutUpload(ctx, key, content)
	return kept, columns, err
}

func (a *API) readCode(w http.ResponseWriter, r *http.Request, c authz.Capability) error {
	g, err := a.given(r, c)
	if err != nil {
		return err
	}
	archive, err := a.registry.Code(r.Context(), g.Job)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Length", strconv.Itoa(len(archive)))
	_, _ = w.Write(archive)
	return nil
}

func (a *API) credentials(
	ctx context.Context, c authz.Capability, in *body[protocol.CredentialsRequest],
) (*body[protocol.Credentials], error) {
	g, err := a.dispatcher.RunningAttempt(ctx, c, in.Body.Fence)
	if err != nil {
		return nil, err
	}

	grant := storage.Grant{Org: g.OrgID, OrgSlug: g.Job.OrgSlug, Task: g.TaskID, Attempt: g.Attempt}
	for _, out := range g.Assignment.Outputs {
		grant.Outputs = append(grant.Outputs, out.Index)
	}
	for _, in := range g.Assignment.Inputs {
		grant.Inputs = append(grant.Inputs, storage.GrantedInput{Generation: in.Generation, Partitions: in.Partitions})
	}

	given, err := a.storage.Credentials(ctx, grant)
	if err != nil {
		return nil, err
	}
	return &body[protocol.Credentials]{protocol.Credentials{AccessKeyID: given.AccessKeyID,
		SecretAccessKey: given.SecretAccessKey,
		SessionToken:    given.SessionToken, ExpiresAt: given.ExpiresAt, Endpoint: given.Endpoint, Region: given.Region,
		Bucket:        given.Bucket,
		ReadPrefixes:  append([]string{}, given.ReadPrefixes...),
		WritePrefixes: append([]string{}, given.WritePrefixes...)}}, nil
}

func (a *API) query(
	ctx context.Context, c authz.Capability, in *body[protocol.QueryRequest],
) (*body[protocol.QueryAnswer], error) {
	g, err := a.dispatcher.RunningAttempt(ctx, c, in.Body.Fence)
	if err != nil {
		return nil, err
	}
	answer, err := a.queries.Over(ctx, query.Given{Org: g.OrgID, Of: "task " + g.TaskID.String(),
		Scope: g.Assignment.Scope(),
		Open: func(ctx context.Context, name, dir string, keyed bool) (files, keys []string, err error) {
			return a.exported(ctx, g.Assignment, name, dir, keyed)
		}}, in.Body.SQL, in.Body.MaxRows)
	if err != nil {
		return nil, err
	}

	out := protocol.QueryAnswer{Columns: []protocol.Column{}, Rows: [][]json.RawMessage{}, Truncated: answer.Truncated}
	for _, column := range answer.Columns {
		out.Columns = append(out.Columns, protocol.Column{Name: column.Name, Type: column.Type})
	}
	for _, row := range answer.Rows {
		var cells []json.RawMessage
		if err := json.Unmarshal(row, &cells); err != nil {
			return nil, err
		}
		out.Rows = append(out.Rows, cells)
	}
	return &body[protocol.QueryAnswer]{out}, nil
}

// exported puts the rows of an input into dir, as Parquet files. If they are to be keyed, each partition has a file of
// its own, and keys says which.
func (a *API) exported(
	ctx context.Context, of operators.Assignment, name, dir string, keyed bool,
) (files, keys []string, err error) {
	at := slices.IndexFunc(of.Inputs, func(in operators.AssignedInput) bool { return strings.EqualFold(in.As, name) })
	if at < 0 {
		return nil, nil, fault.New(fault.NotFound, "the task has no input %q", name)
	}
	input := of.Inputs[at]
	if !keyed || len(input.Partitions) == 0 {
		file, err := a.runner.Export(ctx, of, input, "parquet", dir)
		return []string{file}, []string{""}, err
	}

	for i, partition := range input.Partitions {
		own := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, nil, err
		}
		one := input
		one.Partitions = []storage.Partition{partition}
		file, err := a.runner.Export(ctx, of, one, "parquet", own)
		if err != nil {
			return nil, nil, err
		}
		files, keys = append(files, file), append(keys, partition.Key)
	}
	return files, keys, nil
}
