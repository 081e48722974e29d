package registry

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Bundle is a user's code that was sent before the DAG that uses it. The hash of its content is its name.
type Bundle struct {
	Bundle    string    `json:"bundle" doc:"Its id, as in udf.bundle: SHA-256 over its paths and contents"`
	Files     int       `json:"files"`
	Bytes     int64     `json:"bytes"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
}

// PushBundle stores the code of a zip archive; the same content is the same bundle.
func (r *Registry) PushBundle(ctx context.Context, caller authz.Caller, archive []byte) (b Bundle, err error) {
	bundle, err := unzip(archive)
	if err != nil {
		return Bundle{}, err
	}
	stored, err := zipped(bundle)
	if err != nil {
		return Bundle{}, err
	}

	size := int64(0)
	for _, data := range bundle.Files {
		size += int64(len(data))
	}

	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO udf_bundles (org_id, hash, archive, files, bytes, created_by) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (org_id, hash) DO NOTHING`, caller.OrgID, bundle.Hash, stored, len(bundle.Files), size,
			caller.Actor)
		if err != nil {
			return err
		}
		if tag.RowsAffected() > 0 {
			if err := authz.Audit(ctx, tx, caller, "bundle.push", bundle.Hash, nil); err != nil {
				return err
			}
			if err := takeUpload(ctx, tx, caller.OrgID, size, clock.Now()); err != nil {
				return err
			}
		}

		rows, err := tx.Query(ctx, `SELECT hash, files, bytes, created_by, created_at FROM udf_bundles
			WHERE org_id = $1 AND hash = $2`,
			caller.OrgID, bundle.Hash)
		if err != nil {
			return err
		}
		b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Bundle])
		return err
	})
	if err != nil {
		return Bundle{}, fmt.Errorf("store bundle: %w", err)
	}
	return b, nil
}

// takeUpload takes an archive from the org's quotas of uploads and of storage.
func takeUpload(ctx context.Context, tx pgx.Tx, org uuid.UUID, bytes int64, now time.Time) error {
	if err := authz.TakeQuota(ctx, tx, org, authz.StorageBytes, bytes, now); err != nil {
		return err
	}
	return authz.TakeQuota(ctx, tx, org, authz.UploadsPerDay, 1, now)
}

// StoredBytes counts the bytes that orgs store: of the files of revisions that are kept, each once however many
// revisions have it, of revisions without files, and of bundles.
func StoredBytes(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_id, sum(bytes)::bigint FROM (
			SELECT r.org_id, f ->> 'path', max((f ->> 'bytes')::bigint) AS bytes
			FROM partition_versions r
			CROSS JOIN LATERAL jsonb_array_elements(CASE jsonb_typeof(r.files) WHEN 'array' THEN r.files ELSE '[]' END) AS f
			WHERE r.org_id = ANY($1) AND r.location <> '' GROUP BY 1, 2
			UNION ALL
			SELECT r.org_id, r.location, max(r.bytes) FROM partition_versions r
			WHERE r.org_id = ANY($1) AND r.location <> '' AND r.files IN ('[]', 'null') GROUP BY 1, 2
			UNION ALL
			SELECT org_id, hash, bytes FROM udf_bundles WHERE org_id = ANY($1)) AS kept
		GROUP BY org_id`, orgs)
	if err != nil {
		return nil, fmt.Errorf("count stored bytes: %w", err)
	}

	stored := make(map[uuid.UUID]int64, len(orgs))
	var org uuid.UUID
	var bytes int64
	_, err = pgx.ForEachRow(rows, []any{&org, &bytes}, func() error { stored[org] = bytes; return nil })
	if err != nil {
		return nil, fmt.Errorf("count stored bytes: %w", err)
	}
	return stored, nil
}

// Bundles lists the org's bundles by id, beginning after one.
func (r *Registry) Bundles(ctx context.Context, caller authz.Caller, after string,
	limit int) (bundles []Bundle, err error) {
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT hash, files, bytes, created_by, created_at FROM udf_bundles
			WHERE org_id = $1 AND hash > $2 ORDER BY hash LIMIT $3`,
			caller.OrgID, after, limit)
		if err != nil {
			return err
		}
		bundles, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Bundle])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list bundles: %w", err)
	}
	return bundles, nil
}

// RefuseUnknownBundles refuses a document that names a bundle which the org does not have.
func RefuseUnknownBundles(ctx context.Context, tx pgx.Tx, org uuid.UUID, doc *dag.Document) error {
	for _, job := range doc.Jobs {
		if job.UDF == nil || job.UDF.Bundle == "" {
			continue
		}
		var known bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM udf_bundles WHERE org_id = $1 AND hash = $2)`, org,
			job.UDF.Bundle).Scan(&known); err != nil {
			return fmt.Errorf("bundle of job %s: %w", job.Name, err)
		}
		if !known {
			return fault.New(fault.Invalid, "%s: job %s: there is no bundle %q", job.Position, job.Name,
				job.UDF.Bundle).
				WithHint("`dagctl udf push FOLDER` sends code and prints its id; or name the folder itself")
		}
	}
	return nil
}

// Code returns the zip archive of a job's own code. Files that begin like a script or an ELF program are executable in
// it.
func (r *Registry) Code(ctx context.Context, job *Job) ([]byte, error) {
	udf := job.Def.UDF
	switch {
	case udf == nil:
		return nil, fault.New(fault.NotFound, "job %s has no code of its own", job.Address())
	case udf.Bundle != "":
		var archive []byte
		err := r.Pool.QueryRow(ctx, `SELECT archive FROM udf_bundles WHERE org_id = $1 AND hash = $2`, job.OrgID,
			udf.Bundle).Scan(&archive)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, fault.New(fault.NotFound, "bundle %s of job %s is gone", udf.Bundle, job.Address())
		}
		return archive, err
	}

	var (
		stored []byte
		files  map[string][]byte
	)
	if err := r.Pool.QueryRow(ctx, `SELECT files FROM dag_versions WHERE org_id = $1 AND id = $2`, job.OrgID,
		job.VersionID).Scan(&stored); err != nil {
		return nil, fmt.Errorf("code of %s: %w", job.Address(), err)
	}
	if err := json.Unmarshal(stored, &files); err != nil {
		return nil, fmt.Errorf("code of %s: %w", job.Address(), err)
	}
	return zipped(udf.Code(files))
}

// zipped returns the archive of a bundle. The same bundle always gives the same bytes.
func zipped(b dag.Bundle) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(b.Files)) {
		header := &zip.FileHeader{Name: name, Method: zip.Deflate}
		header.SetMode(0o644)
		if data := b.Files[name]; bytes.HasPrefix(data, []byte("#!")) || bytes.HasPrefix(data, []byte("\x7fELF")) {
			header.SetMode(0o755)
		}
		file, err := w.CreateHeader(header)
		if err == nil {
			_, err = file.Write(b.Files[name])
		}
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", name, err)
		}
	}

	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unzip reads an archive within the limits of a bundle. A single folder around everything is left out.
func unzip(archive []byte) (dag.Bundle, error) {
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return dag.Bundle{}, fault.New(fault.Invalid, "not a zip archive: %w", err).
			WithHint("send a folder, or a zip of one")
	}
	if err := valid(r); err != nil {
		return dag.Bundle{}, err
	}

	root := "."
	if entries, err := fs.ReadDir(r, "."); err == nil && len(entries) == 1 && entries[0].IsDir() &&
		!strings.HasPrefix(entries[0].Name(), ".") {
		root = entries[0].Name()
	}

	bundle, err := dag.ReadBundle(r, root)
	if err != nil {
		return dag.Bundle{}, fault.New(fault.Invalid, "%w", err)
	}
	return bundle, nil
}

// valid refuses archives that cannot be unpacked as plain files and folders.
func valid(r *zip.Reader) error {
	if len(r.File) > 10*dag.MaxUDFFiles {
		return fault.New(fault.TooLarge, "the archive has %d entries; a bundle may have %d files", len(r.File),
			dag.MaxUDFFiles)
	}

	names := entries{}
	for _, f := range r.File {
		name := f.Name
		if n := len(name); n > 0 && name[n-1] == '/' {
			name = name[:n-1]
		}

		if !fs.ValidPath(name) {
			return fault.New(fault.Invalid, "the archive has a file named %q, which is outside of the archive", f.Name)
		}
		if f.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			return fault.New(fault.Invalid, "%s in the archive has a setuid, setgid or sticky bit", f.Name).
				WithHint("pack it without: `chmod u-s,g-s,-t` takes them away")
		}
		if !f.Mode().IsRegular() && !f.Mode().IsDir() {
			return fault.New(fault.Invalid,
				"%s in the archive is a link or a device; only files and folders are allowed", f.Name)
		}
		if err := names.add(name, f.Mode().IsDir()); err != nil {
			return err
		}
	}
	return nil
}

// entries has the names in an archive, and whether each is a folder that has an entry of its own. Folders above others
// need none.
type entries map[string]entry

type entry struct{ folder, listed bool }

// add returns an error if a name is there twice, or is both a file and a folder: programs that unpack the archive would
// not agree about what is in it.
func (e entries) add(name string, folder bool) error {
	before, known := e[name]
	switch {
	case known && before.folder != folder:
		return bothFileAndFolder(name)
	case known && before.listed:
		return fault.New(fault.Invalid, "the archive has %s twice", name).
			WithHint("pack it anew, each file once")
	}
	e[name] = entry{folder: folder, listed: true}

	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		before, known := e[above]
		if known && !before.folder {
			return bothFileAndFolder(above)
		}
		if !known {
			e[above] = entry{folder: true}
		}
	}
	return nil
}

func bothFileAndFolder(name string) error {
	return fault.New(fault.Invalid, "the archive has %s as a file and as a folder", name).
		WithHint("pack it anew, with one of the two under another name")
}
