package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
)

// PageInput is embedded in the input of an operation that lists.
type PageInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"The most items of the answer"`
	Cursor string `query:"cursor" maxLength:"2000" doc:"next_cursor of the previous answer"`
}

// After reads the cursor into position, a pointer to the type that NewList's key returns. It returns false for the
// first page, which has no cursor. A cursor is a position and grants nothing, so it does not matter if a client invents
// one.
func (p PageInput) After(position any) (bool, error) {
	if p.Cursor == "" {
		return false, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		err = literal.Escapes(data)
	}
	if err == nil {
		err = json.Unmarshal(data, position)
	}
	if err != nil {
		return false, fault.New(fault.Invalid, "the cursor is not from this list").
			WithHint("use next_cursor of the previous answer, or leave the cursor out to start again")
	}
	return true, nil
}

// List is the answer of an operation that lists.
type List[T any] struct {
	Items      []T    `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"If there are more items: the cursor of the next page"`
}

// NewList returns an answer of at most limit rows. The query must have asked for limit+1 rows: the extra row only shows
// that there are more. key returns the position of a row in the list's order.
func NewList[T any](rows []T, limit int, key func(T) any) (List[T], error) {
	if len(rows) <= limit {
		if rows == nil {
			rows = []T{}
		}
		return List[T]{Items: rows}, nil
	}
	rows = rows[:limit]
	next, err := Cursor(key(rows[limit-1]))
	return List[T]{Items: rows, NextCursor: next}, err
}

// Cursor encodes a position for PageInput.After.
func Cursor(position any) (string, error) {
	text, err := json.Marshal(position)
	if err != nil {
		return "", fmt.Errorf("encode cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(text), nil
}
