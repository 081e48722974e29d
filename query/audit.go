package query

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// use is what the audit log keeps of rows that were read: which datasets and columns, and how many rows; never what
// was asked of them.
type use struct {
	Datasets []read `json:"datasets"`
	Rows     int    `json:"rows"`
	At       string `json:"at,omitempty"`     // where that is not live
	Failed   string `json:"failed,omitempty"` // the kind of error that came in place of the rows
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
