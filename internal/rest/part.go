package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Part reads values of T that stand in a larger body as if each were the body of a request: it checks the same, and
// refuses in the same words.
type Part[T any] struct {
	schemas huma.Registry
	schema  *huma.Schema
}

// NewPart returns a Part.
func NewPart[T any]() *Part[T] {
	schemas := huma.NewMapRegistry("#/", schemaName)
	return &Part[T]{schemas, schemas.Schema(reflect.TypeFor[T](), true, "")}
}

// Read reads a value. What is wrong with it is a Problem.
func (p *Part[T]) Read(ctx context.Context, text json.RawMessage) (value T, err error) {
	refuse := func(status int, errs ...error) (T, error) {
		var none T
		return none, newProblem(ctx, status, "validation failed", errs)
	}

	var parsed any
	if err := jsonFormat.Unmarshal(text, &parsed); err != nil {
		return refuse(http.StatusBadRequest, &huma.ErrorDetail{Location: "body", Message: err.Error()})
	}
	var result huma.ValidateResult
	at := huma.NewPathBuffer(nil, 0)
	at.Push("body")
	huma.Validate(p.schemas, p.schema, at, huma.ModeWriteToServer, parsed, &result)
	if len(result.Errors) > 0 {
		return refuse(http.StatusUnprocessableEntity, result.Errors...)
	}

	in := struct{ Body T }{}
	if err := jsonFormat.Unmarshal(text, &in.Body); err != nil {
		return refuse(http.StatusUnprocessableEntity, &huma.ErrorDetail{Location: "body", Message: err.Error()})
	}
	return in.Body, checkTimes(in)
}
