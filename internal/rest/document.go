package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/fault"
)

// The OpenAPI document. Operations say what is theirs; what holds for all of them is added here, once every route is
// registered: where the API is, what its tags mean, how it refuses, and an example of each JSON text.

type openAPI struct {
	json []byte
	etag string
}

// OpenAPI returns the document to which operations are added. It may be changed until it is first served.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// ServeOpenAPI answers with the OpenAPI document.
func (a *API) ServeOpenAPI(w http.ResponseWriter, r *http.Request) error {
	doc, err := a.document()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/openapi+json")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", doc.etag)
	if r.Header.Get("If-None-Match") == doc.etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	_, err = w.Write(doc.json)
	return err
}

// schemaName returns the name of a type in the OpenAPI document. It leaves out the package, except for types of the
// worker protocol and for one of the two types named Problem.
func schemaName(t reflect.Type, hint string) string {
	named := t
	for named.Kind() == reflect.Pointer || named.Kind() == reflect.Slice {
		named = named.Elem()
	}
	if path.Base(named.PkgPath()) == "protocol" {
		return "Protocol" + huma.DefaultSchemaNamer(t, hint)
	}
	if t == reflect.TypeFor[fault.Problem]() {
		return "ProblemDetail"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// about is what the document says of the API as a whole.
const about = `The HTTP API of dagctl, a data orchestrator. Bodies are JSON. Errors are problem documents (RFC 9457): ` +
	`"detail" says what is wrong, "hint" how to mend it, and "errors" lists every fault of a malformed request with ` +
	`its place. Lists come in pages: "next_cursor" of an answer is the "cursor" of the next request. Times are RFC ` +
	`3339 in UTC. What the caller may not read is absent: 404.`

// tags say what the operations of each tag are about, in the order in which the document lists them.
var tags = []*huma.Tag{
	{Name: "dags", Description: "DAGs, their versions and jobs: plan, deploy, promote, roll back, pause, run."},
	{Name: "datasets", Description: "The catalogue: datasets, partitions, lineage, and queries over them."},
	{Name: "tasks", Description: "Tasks with their attempts, logs and trail, and what a person does about them."},
	{Name: "timers", Description: "Timers, which make tasks at times of a zone."},
	{Name: "upkeep", Description: "Backfills, invalidation, pins, garbage collection and pauses."},
	{Name: "costs", Description: "What jobs, datasets and owners use, in bytes, seconds and money."},
	{Name: "access", Description: "Orgs, users, roles, tokens, secrets, trust and the audit log."},
	{Name: "workers", Description: "The processes that run tasks, and the queues that they serve."},
	{Name: "webhooks", Description: "Events that other systems send."},
	{Name: "worker protocol", Description: "Calls of a worker, with its token (docs/workers.md)."},
	{Name: "task protocol", Description: "Calls of a running attempt, with its capability and fence."},
}

// refusals are the answers that operations of a kind have in common.
var refusals = map[int]string{
	http.StatusUnauthorized:          "There is no credential, or it is not accepted.",
	http.StatusForbidden:             "The caller may not do this.",
	http.StatusNotFound:              "There is no such thing, or the caller may not read it.",
	http.StatusRequestEntityTooLarge: "The body is too large.",
	http.StatusUnprocessableEntity:   "The request is malformed: `errors` lists every fault.",
	http.StatusTooManyRequests:       "Too many requests: `Retry-After` says how many seconds to wait.",
}

// encodeDocument completes and encodes the document.
func (a *API) encodeDocument() (openAPI, error) {
	doc := a.huma.OpenAPI()
	doc.Info.Description = about
	doc.Info.Contact = &huma.Contact{Name: "dagctl"}
	doc.Info.License = &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"}
	doc.Servers = []*huma.Server{{URL: "/", Description: "The server that this document comes from"}}
	doc.Tags = tags
	if doc.Components.Responses == nil {
		doc.Components.Responses = map[string]*huma.Response{}
	}
	problem := doc.Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "")
	for status, text := range refusals {
		doc.Components.Responses[refusalName(status)] = &huma.Response{Description: text,
			Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problem}}}
	}

	// OpenAPI has no wildcard for the rest of a path.
	for path, item := range doc.Paths {
		if plain := strings.ReplaceAll(path, "...}", "}"); plain != path {
			delete(doc.Paths, path)
			doc.Paths[plain] = item
		}
	}
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			refuse(op)
			illustrate(doc.Components.Schemas, op)
		}
	}

	text, err := json.Marshal(doc)
	if err != nil {
		return openAPI{}, fmt.Errorf("encode OpenAPI document: %w", err)
	}
	sum := sha256.Sum256(text)
	return openAPI{json: text, etag: ETag(hex.EncodeToString(sum[:8]))}, nil
}

// describeRepeated adds 200 to the answers of an operation that creates something and chooses its status: it answers so
// where that was created before.
func describeRepeated[O any](op huma.Operation) {
	created := op.Responses[strconv.Itoa(http.StatusCreated)]
	if _, chooses := reflect.TypeFor[O]().FieldByName("Status"); chooses && created != nil {
		repeated := *created
		repeated.Description = "Created before"
		op.Responses[strconv.Itoa(http.StatusOK)] = &repeated
	}
}

func operationsOf(item *huma.PathItem) (all []*huma.Operation) {
	for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
		if op != nil {
			all = append(all, op)
		}
	}
	return all
}

func refusalName(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

// refuse adds to an operation the refusals that it has because of its credential, its parameters and its body.
func refuse(op *huma.Operation) {
	all := []int{http.StatusTooManyRequests}
	if len(op.Security) > 0 {
		all = append(all, http.StatusUnauthorized, http.StatusForbidden)
	}
	if strings.Contains(op.Path, "{") {
		all = append(all, http.StatusNotFound)
	}
	if op.RequestBody != nil {
		all = append(all, http.StatusRequestEntityTooLarge)
	}
	if op.RequestBody != nil || len(op.Parameters) > 0 {
		all = append(all, http.StatusUnprocessableEntity)
	}

	for _, status := range all {
		if key := strconv.Itoa(status); op.Responses[key] == nil {
			op.Responses[key] = &huma.Response{Ref: "#/components/responses/" + refusalName(status)}
		}
	}
}
