package scim

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// What SCIM calls kinds of errors (RFC 7644, table 9).
const (
	invalidFilter = "invalidFilter"
	invalidSyntax = "invalidSyntax"
	invalidPath   = "invalidPath"
	invalidValue  = "invalidValue"
	noTarget      = "noTarget"
	mutability    = "mutability"
	uniqueness    = "uniqueness"
)

// typed is a fault with its scimType.
type typed struct {
	cause    *fault.Error
	scimType string
}

func (t *typed) Error() string { return t.cause.Error() }

func (t *typed) Unwrap() error { return t.cause }

// invalid returns the error of a request that is wrong.
func invalid(scimType, format string, args ...any) error {
	return &typed{fault.New(fault.Invalid, format, args...), scimType}
}

// fail answers with an error in SCIM's form.
func fail(w http.ResponseWriter, p *rest.Problem, err error) {
	status, scimType := p.Status, ""
	switch p.Status {
	case http.StatusUnprocessableEntity:
		status, scimType = http.StatusBadRequest, invalidValue
	case http.StatusConflict:
		scimType = uniqueness
	}
	var t *typed
	if errors.As(err, &t) {
		scimType = t.scimType
	}

	detail := p.Detail
	if p.Hint != "" {
		detail = fmt.Sprintf("%s; %s", detail, p.Hint)
	}
	body := map[string]any{"schemas": []string{errorSchema}, "status": strconv.Itoa(status), "detail": detail}
	if scimType != "" {
		body["scimType"] = scimType
	}
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	_ = write(w, status, body)
}
