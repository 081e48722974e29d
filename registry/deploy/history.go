package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/pmezard/go-difflib/difflib"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// PastVersion is a version with the times at which it served.
type PastVersion struct {
	registry.Version
	InstantUntil *time.Time   `json:"instant_until,omitempty" doc:"A rollback to it is instant until then"`
	Purged       bool         `json:"purged,omitempty" doc:"Data of it was purged or collected: it cannot serve again"`
	Pinned       bool         `json:"pinned,omitempty" doc:"Kept whatever its age: a rollback to it stays instant"`
	Activations  []Activation `json:"activations,omitempty" doc:"The latest times it was cut over to, the newest first"`
}

// Activation is one cutover to a version.
type Activation struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason" enum:"deploy,promote,rollback"`
	Actor  string    `json:"actor"`
	From   *int      `json:"from_version,omitempty" doc:"The version that served before"`
}

// History lists a DAG's versions, the newest first, beginning before the given number (0: with the newest).
func (dp *Deployer) History(ctx context.Context, caller authz.Caller, dagName string,
	before, limit int) ([]PastVersion, error) {
	versions, err := dp.registry.Versions(ctx, caller, dagName, before, limit)
	if err != nil {
		return nil, err
	}

	list, at := make([]PastVersion, len(versions)), make(map[uuid.UUID]*PastVersion, len(versions))
	for i, v := range versions {
		list[i].Version = v
		at[v.ID] = &list[i]
	}

	err = pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := addActivations(ctx, tx, caller.OrgID, at); err != nil {
			return err
		}
		return addWindows(ctx, tx, caller.OrgID, dagName, at)
	})
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", dagName, err)
	}
	return list, nil
}

// addActivations adds to each version its latest activations. It relies on idx_dag_activations_dag, which has few rows
// per DAG: people cause cutovers.
func addActivations(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions map[uuid.UUID]*PastVersion) error {
	rows, err := tx.Query(ctx, `
		SELECT a.dag_version_id, a.at, a.reason, a.actor, f.number
		FROM (SELECT *, row_number() OVER (PARTITION BY dag_version_id ORDER BY at DESC, id DESC) AS n
		      FROM dag_activations WHERE org_id = $1 AND dag_version_id = ANY($2)) AS a
		LEFT JOIN dag_versions f ON f.id = a.from_version_id
		WHERE a.n <= 10 ORDER BY a.dag_version_id, a.n`, org, slices.Collect(maps.Keys(versions)))
	if err != nil {
		return fmt.Errorf("list activations: %w", err)
	}

	var (
		id   uuid.UUID
		a    Activation
		from *int
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &a.At, &a.Reason, &a.Actor, &from}, func() error {
		a.From = from
		versions[id].Activations = append(versions[id].Activations, a)
		return nil
	})
	return err
}

// addWindows adds to the versions until when a rollback to them is instant.
func addWindows(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string,
	versions map[uuid.UUID]*PastVersion) error {
	rows, err := tx.Query(ctx, `SELECT previous_version_id, rollback_until FROM dag_current_versions
		WHERE org_id = $1 AND dag_name = $2 AND rollback_until > now()`, org, dagName)
	if err != nil {
		return fmt.Errorf("read rollback window: %w", err)
	}

	var (
		id    uuid.UUID
		until time.Time
	)
	if _, err = pgx.ForEachRow(rows, []any{&id, &until}, func() error {
		if v := versions[id]; v != nil {
			v.InstantUntil = &until
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read rollback window: %w", err)
	}

	if err := addPins(ctx, tx, org, versions); err != nil {
		return err
	}
	return endWindows(ctx, tx, org, versions)
}

// endWindows takes the windows from the versions that cannot serve again. Versions share most generations, and those of
// a dataset that are not purged are found in idx_dataset_versions_kept.
func endWindows(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions map[uuid.UUID]*PastVersion) error {
	rows, err := tx.Query(ctx, `
		WITH used AS MATERIALIZED (
			SELECT p.dag_version_id, p.dataset_uuid, p.dataset_version FROM dag_version_datasets p
			WHERE p.org_id = $1 AND p.dag_version_id = ANY($2)),
		kept AS MATERIALIZED (
			SELECT g.id FROM dataset_versions g
			WHERE g.org_id = $1 AND g.dataset_uuid = ANY(ARRAY(SELECT DISTINCT dataset_uuid FROM used))
			  AND g.purged_at IS NULL)
		SELECT DISTINCT u.dag_version_id FROM used u
		WHERE NOT EXISTS (SELECT FROM kept k WHERE k.id = u.dataset_version)`,
		org, slices.Collect(maps.Keys(versions)))
	if err != nil {
		return fmt.Errorf("find purged versions: %w", err)
	}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		v := versions[id]
		v.Purged, v.InstantUntil, v.Pinned = true, nil, false
		return nil
	})
	return err
}

// addPins extends the window to the end of a pin, if that is later.
func addPins(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions map[uuid.UUID]*PastVersion) error {
	rows, err := tx.Query(ctx, `SELECT dag_version_id, until FROM pins
		WHERE org_id = $1 AND dag_version_id = ANY($2) AND (until IS NULL OR until > now())`,
		org, slices.Collect(maps.Keys(versions)))
	if err != nil {
		return fmt.Errorf("read pins: %w", err)
	}

	var (
		id    uuid.UUID
		until *time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &until}, func() error {
		v := versions[id]
		v.Pinned = v.Pinned || until == nil
		if until != nil && (v.InstantUntil == nil || v.InstantUntil.Before(*until)) {
			v.InstantUntil = until
		}
		return nil
	})
	return err
}

// The names that documentOf gives to what is no file that the document names.
const (
	documentName  = "dag.yaml"
	variablesName = "variables"
)

// documentOf returns all the text of a version: the DAG file, the files it names, and its variables. Where the reader
// may not read it, texts are nil.
func documentOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string,
	number int) (id uuid.UUID, shrunk bool, texts map[string]string, err error) {
	var (
		yaml  *string
		files map[string][]byte
		vars  map[string]string
	)
	err = tx.QueryRow(ctx, `SELECT v.id, v.shrunk_at IS NOT NULL, x.yaml, x.files, x.vars
		FROM dag_versions v LEFT JOIN dag_version_texts x ON x.id = v.id
		WHERE v.org_id = $1 AND v.dag_name = $2 AND v.number = $3`,
		org, dagName, number).Scan(&id, &shrunk, &yaml, &files, &vars)
	if err == pgx.ErrNoRows {
		return id, false, nil, fault.New(fault.NotFound, "DAG %q has no version %d", dagName, number).
			WithHint("`dagctl history %s` lists its versions", dagName)
	}
	if err != nil {
		return id, false, nil, fmt.Errorf("read version %d: %w", number, err)
	}

	if yaml == nil {
		return id, shrunk, nil, nil
	}
	texts = map[string]string{documentName: *yaml}
	for name, content := range files {
		texts[name] = string(content)
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		texts[variablesName] += name + "=" + vars[name] + "\n"
	}
	return id, shrunk, texts, nil
}

// maxDiffLines limits the comparison line by line, whose cost is quadratic at worst.
const maxDiffLines = 20_000

// unified compares the texts of two versions, file by file.
func unified(from, to map[string]string, fromName, toName string) (string, error) {
	names := map[string]bool{}
	for _, texts := range []map[string]string{from, to} {
		for name := range texts {
			names[name] = true
		}
	}

	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, z := from[name], to[name]
		if a == z {
			continue
		}
		if strings.Count(a, "\n")+strings.Count(z, "\n") > maxDiffLines || strings.ContainsRune(a+z, 0) {
			fmt.Fprintf(&b, "%s differs between %s and %s\n", name, fromName, toName)
			continue
		}

		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
			A: difflib.SplitLines(a), B: difflib.SplitLines(z),
			FromFile: fromName + "/" + name, ToFile: toName + "/" + name, Context: 3,
		})
		if err != nil {
			return "", fmt.Errorf("compare %s: %w", name, err)
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// Definition is what a version is made of: its jobs, and the texts that its document names.
type Definition struct {
	Jobs     []registry.JobView `json:"jobs" nullable:"false"`
	Files    []DefinitionFile   `json:"files" nullable:"false" doc:"That the document names, in the order of their paths"`
	Redacted bool               `json:"redacted,omitempty" doc:"The version reads or makes what the caller may not read: files and jobs are left out"`
}

// DefinitionFile is a file that a document names.
type DefinitionFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Text  string `json:"text,omitempty" doc:"Left out where it is no text, or longer than 256 KiB"`
}

// maxShownFile is how long a file is that Definition returns whole, in bytes.
const maxShownFile = 256 << 10

// Definition returns the jobs and files of a version. Its document is in registry.Version.
func (dp *Deployer) Definition(ctx context.Context, caller authz.Caller, dagName string,
	number int) (Definition, error) {
	found := Definition{Jobs: []registry.JobView{}, Files: []DefinitionFile{}}
	err := pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		id, _, texts, err := documentOf(ctx, tx, caller.OrgID, dagName, number)
		if err != nil {
			return err
		}
		hidden, err := registry.HiddenVersions(ctx, tx, caller, []uuid.UUID{id})
		if err != nil {
			return err
		}
		if found.Redacted = hidden[id] || texts == nil; found.Redacted {
			return nil
		}

		delete(texts, documentName)
		delete(texts, variablesName)
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			file := DefinitionFile{Path: name, Bytes: int64(len(texts[name]))}
			if utf8.ValidString(texts[name]) && len(texts[name]) <= maxShownFile {
				file.Text = texts[name]
			}
			found.Files = append(found.Files, file)
		}
		found.Jobs, err = dp.registry.JobsOf(ctx, tx, caller, id)
		return err
	})
	if err != nil {
		return Definition{}, fmt.Errorf("definition of %s v%d: %w", dagName, number, err)
	}
	return found, nil
}
