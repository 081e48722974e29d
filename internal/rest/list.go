package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/dagctl/dagctl/internal/fault"
)

// PageInput is embedded in the input of an operation that lists.
type PageInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"How many to answer with at most"`
	Cursor string `query:"cursor" maxLength:"2000" doc:"Where to go on: next_cursor of the answer before"`
}

// After reads the cursor into position, a pointer to the type that NewList's key returns. It reports false on the first
// page, which starts at no position. A cursor is a position and no permission: it does not matter who made it up.
func (p PageInput) After(position any) (bool, error) {
	if p.Cursor == "" {
		return false, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil && hasNUL(data) {
		err = fmt.Errorf("it holds a NUL")
	}
	if err == nil {
		err = json.Unmarshal(data, position)
	}
	if err != nil {
		return false, fault.New(fault.Invalid, "the cursor is not one of this list's").
			WithHint("take next_cursor of the answer before, or leave it out to start again")
	}
	return true, nil
}

// List is the answer of an operation that lists.
type List[T any] struct {
	Items      []T    `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"There is more; pass this as cursor"`
}

// NewList shapes up to limit+1 rows, which is what the query must have asked for, into an answer of at most limit: the
// extra row only shows that there is more. key is the position of a row in the list's order.
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

// Cursor is a position as PageInput.After reads it.
func Cursor(position any) (string, error) {
	text, err := json.Marshal(position)
	if err != nil {
		return "", fmt.Errorf("encode cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(text), nil
}
