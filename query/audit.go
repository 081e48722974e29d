package query

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// use is what the audit log keeps of a read: the datasets, the columns and the number of rows, but never the statement.
type use struct {
	Datasets []read `json:"datasets"`
	Rows     *int   `json:"rows,omitempty"`   // nil: of an export, whose rows leave after this is written
	At       string `json:"at,omitempty"`     // empty: live
	Failed   string `json:"failed,omitempty"` // the kind of error, if there was one
	Format   Format `json:"format,omitempty"` // of an export
}

type read struct {
	Dataset string    `json:"dataset"`
	Version uuid.UUID `json:"dataset_version"`
	Columns []string  `json:"columns"`
}

func (u use) write(ctx context.Context, tx pgx.Tx, caller authz.Caller, action string) error {
	names := make([]string, len(u.Datasets))
	for i, d := range u.Datasets {
		names[i] = d.Dataset
	}
	return authz.Audit(ctx, tx, caller, action, strings.Join(names, ","), u)
}
