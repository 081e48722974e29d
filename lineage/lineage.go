// Package lineage records which columns were computed from which, and answers where datasets, columns and revisions
// come from and what is made from them.
//
// Vocabulary: a column edge states that a column of one dataset version was computed from a column of another. A graph
// has datasets as nodes and the jobs between them as edges. Package registry/flow knows which job reads which dataset,
// at any moment, and what a revision was made from; the dispatcher's view task_inputs has what a task read.
//
// It owns column_lineage.
package lineage

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// Transform is how a column was computed from another.
type Transform string

const (
	Identity   Transform = "identity"   // copied as it is
	Expression Transform = "expression" // computed row by row
	Aggregate  Transform = "aggregate"  // computed over many rows
)

// Column is a column of one dataset version.
type Column struct {
	DatasetUUID    uuid.UUID
	DatasetVersion uuid.UUID
	Name           string
}

// ColumnEdge states that Output was computed from Input.
type ColumnEdge struct {
	Output    Column
	Input     Column
	Transform Transform
}

// RecordColumns adds to a batch the statement that stores the edges that a job's task found. It leaves known edges as
// they are, so every task of a job may record the same ones.
func RecordColumns(b *pg.Batch, orgID, jobID uuid.UUID, edges []ColumnEdge) {
	n := len(edges)
	outDatasets, outVersions, outColumns := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n)
	inDatasets, inVersions, inColumns := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n)
	transforms := make([]string, n)
	for i, e := range edges {
		outDatasets[i], outVersions[i], outColumns[i] = e.Output.DatasetUUID, e.Output.DatasetVersion, e.Output.Name
		inDatasets[i], inVersions[i], inColumns[i] = e.Input.DatasetUUID, e.Input.DatasetVersion, e.Input.Name
		transforms[i] = string(e.Transform)
	}

	// Sorted, so that two tasks of one job that add the same edges wait for each other and do not deadlock.
	b.Exec(fmt.Sprintf("record column lineage of job %s", jobID), `
		INSERT INTO column_lineage (org_id, job_id,
			output_dataset_uuid, output_dataset_version, output_column,
			input_dataset_uuid, input_dataset_version, input_column, transform)
		SELECT $1, $2, e.*
		FROM unnest($3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::uuid[], $8::text[], $9::text[]) AS e (
			output_dataset_uuid, output_dataset_version, output_column,
			input_dataset_uuid, input_dataset_version, input_column, transform)
		ORDER BY e.output_dataset_version, e.output_column, e.input_dataset_version, e.input_column, e.transform
		ON CONFLICT DO NOTHING`,
		orgID, jobID, outDatasets, outVersions, outColumns, inDatasets, inVersions, inColumns, transforms)
}

// Origins returns the edges into a dataset version's columns. The caller must check what may be shown.
func Origins(ctx context.Context, tx pgx.Tx, orgID, datasetVersion uuid.UUID) ([]ColumnEdge, error) {
	return columnEdges(ctx, tx, `output_dataset_version = $2`, orgID, datasetVersion) // column_lineage_pkey
}

// Uses returns the edges out of a dataset version's columns. The caller must check what may be shown.
func Uses(ctx context.Context, tx pgx.Tx, orgID, datasetVersion uuid.UUID) ([]ColumnEdge, error) {
	return columnEdges(ctx, tx, `input_dataset_version = $2`, orgID, datasetVersion) // idx_column_lineage_input
}

func columnEdges(ctx context.Context, tx pgx.Tx, which string, orgID, datasetVersion uuid.UUID) ([]ColumnEdge, error) {
	rows, err := tx.Query(ctx, `
		SELECT output_dataset_uuid, output_dataset_version, output_column,
			input_dataset_uuid, input_dataset_version, input_column, transform
		FROM column_lineage
		WHERE org_id = $1 AND `+which+`
		ORDER BY output_dataset_version, output_column, input_dataset_version, input_column,
			transform`, orgID, datasetVersion)
	if err != nil {
		return nil, fmt.Errorf("list column lineage of dataset version %s: %w", datasetVersion, err)
	}
	edges, err := collectEdges(rows)
	if err != nil {
		return nil, fmt.Errorf("list column lineage of dataset version %s: %w", datasetVersion, err)
	}
	return edges, nil
}

func collectEdges(rows pgx.Rows) ([]ColumnEdge, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ColumnEdge, err error) {
		err = row.Scan(&e.Output.DatasetUUID, &e.Output.DatasetVersion, &e.Output.Name,
			&e.Input.DatasetUUID, &e.Input.DatasetVersion, &e.Input.Name, &e.Transform)
		return e, err
	})
}
