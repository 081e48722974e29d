package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// What a body has that its type cannot hold is said in our words, with its place.
func TestBodiesThatDoNotFitAreToldInWords(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	type part struct {
		Small int32 `json:"small,omitempty"`
	}
	type body struct {
		ID    uuid.UUID      `json:"id,omitempty"`
		IDs   []uuid.UUID    `json:"ids,omitempty"`
		When  *time.Time     `json:"when,omitempty"`
		Count int            `json:"count,omitempty"`
		Few   *int16         `json:"few,omitempty"`
		Share float64        `json:"share,omitempty"`
		Ttl   int            `json:"ttl,omitempty" minimum:"60" maximum:"31536000000"`
		Parts []part         `json:"parts,omitempty"`
		By    map[string]int `json:"by,omitempty"`
		Any   any            `json:"any,omitempty"`
	}
	type input struct{ Body body }
	Register(api, huma.Operation{OperationID: "x", Method: http.MethodPost, Path: "/x"},
		func(context.Context, *input) (*struct{}, error) { return nil, nil })

	for text, says := range map[string]string{
		`{"id": "ab"}`: "id must be a UUID",
		`{"ids": ["4a5b5c5d-0000-4000-8000-000000000000", "ab"]}`: "ids[1] must be a UUID",
		`{"when": "yesterday"}`:                                   "when must be a time such as 2026-01-31T12:00:00Z",
		`{"count": 99999999999999999999}`:                         "count must be a whole number from -9223372036854775808 to 9223372",
		`{"count": 1e2}`:                                          "9223372036854775807, written in digits",
		`{"count": 1.5}`:                                          "count must be a whole number",
		`{"few": 70000}`:                                          "few must be a whole number from -32768 to 32767",
		`{"parts": [{}, {"small": 3000000000}]}`:                  "parts[1].small must be a whole number from -2147483648 to",
		`{"by": {"x y": 99999999999999999999}}`:                   `by.x y must be a whole number from`,
		`{"share": 1e999}`:                                        "the number 1e999 is refused: it is larger than a DOUBLE holds",
		`{"any": 1e999}`:                                          "the number 1e999 is refused",
		`{"count": "x"}`:                                          "count must be a whole number",
		`{"ttl": 31536000001}`:                                    "ttl must be at most 31536000000",
		`{"count": 1`:                                             "unexpected end of JSON input",
		`[]`:                                                      "must be an object",
		`7`:                                                       "must be an object",
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		api.Handler().ServeHTTP(w, r)
		require.Contains(t, []int{400, 422}, w.Code, text)
		require.Contains(t, w.Body.String(), says, text)
		for _, internal := range []string{"Go ", "unmarshal", "invalid UUID", "int64", "e+"} {
			require.NotContains(t, w.Body.String(), internal, text)
		}
	}
}

// A parameter that has one value is not given twice: nobody knows which of them counts.
func TestAParameterIsGivenOnce(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	type input struct {
		Limit int      `query:"limit"`
		Tags  []string `query:"tag,explode"`
	}
	type output struct{ Body []string }
	Register(api, huma.Operation{OperationID: "x", Method: http.MethodGet, Path: "/x"},
		func(_ context.Context, in *input) (*output, error) { return &output{in.Tags}, nil })

	for query, want := range map[string]struct {
		status int
		says   string
	}{
		"limit=1&limit=2":     {422, "the request is not valid: limit is given 2 times, and has one value"},
		"limit=1&limit=1":     {422, "limit is given 2 times"},
		"limit=1&tag=a&tag=b": {200, `["a","b"]`},
	} {
		w := httptest.NewRecorder()
		api.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x?"+query, nil))
		require.Equal(t, want.status, w.Code, query)
		require.Contains(t, w.Body.String(), want.says, query)
	}
}
