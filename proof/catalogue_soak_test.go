//go:build soak

package proof_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// catalogueDAG publishes as many datasets as jobs of 16 outputs have; a fifth of them carries the tag "fifth".
func catalogueDAG(name string, jobs int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nname: %s\njobs:\n", name)
	publish := "publish:\n"
	for i := range jobs {
		fmt.Fprintf(&b, `
  - name: job_%03d
    operator: command
    source: { kind: manual }
    partition_by: { time: day }
    outputs: 16
    config: { argv: ["true"] }
`, i)
		for o := range 16 {
			tags := ""
			if o%5 == 0 {
				tags = ", tags: [fifth]"
			}
			publish += fmt.Sprintf("  %s_%03d_%02d: { from: { job: job_%03d, output: %d }, description: "+
				"\"Measurements of %d\"%s }\n", name, i, o, i, o, o, tags)
		}
	}
	return b.String() + publish
}

// TestSoakCatalogueOf10000Datasets measures the list call, the search and the catalogue page, and checks that paging
// through either list shows every dataset once. Each dataset has 20 columns with descriptions.
func TestSoakCatalogueOf10000Datasets(t *testing.T) {
	t.Parallel()
	const dags, jobs, asked = 10, 63, 100
	w := newWorld(t)
	stop := w.start(w.d)
	for i := range dags {
		w.serve(catalogueDAG(fmt.Sprintf("dag_%d", i), jobs))
	}

	stop()
	// A month of partitions each, inserted because computing them would take too long.
	w.exec(`
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, location,
			row_count, bytes, schema, schema_hash, task_id, attempt)
		SELECT p.org_id, p.dataset_uuid, p.dataset_version, '2026-01-' || lpad(n::text, 2, '0'), 1, 'Published', 'x',
			1000, 10000, '[]', '', gen_random_uuid(), 1
		FROM dataset_pointers p, generate_series(1, 30) AS n`)

	w.exec(`
		UPDATE dataset_versions SET schema_hash = 'twenty', schema = (
			SELECT jsonb_agg(jsonb_build_object('name', word || '_' || n, 'type', 'BIGINT'))
			FROM generate_series(1, 20) AS n,
				LATERAL (SELECT (ARRAY['airport', 'carrier', 'delay', 'price', 'store'])[1 + n % 5] AS word) AS w)`)
	w.exec(`
		UPDATE datasets d SET owner = 'team-' || producer_output_index, columns = (
			SELECT jsonb_object_agg(c ->> 'name', 'What ' || (c ->> 'name') || ' of ' || d.name || ' measures')
			FROM dataset_versions g, jsonb_array_elements(g.schema) AS c WHERE g.dataset_uuid = d.id)`)
	w.exec(`ANALYZE`)
	api := w.listen()
	start := time.Now()
	api.page(t, "/v1/datasets?search=airport")
	t.Logf("the first search, which reads all: %v", time.Since(start).Round(time.Millisecond))

	for _, list := range []string{"/v1/datasets?limit=500", "/v1/datasets?limit=500&search=mesurements"} {
		seen := map[string]bool{}
		for path := list; path != ""; {
			var page rest.List[registry.Dataset]
			require.NoError(t, api.get(t.Context(), path, &page))
			for _, d := range page.Items {
				require.False(t, seen[d.Name], d.Name)
				require.EqualValues(t, 30, d.Partitions)
				seen[d.Name] = true
			}
			path = ""
			if page.NextCursor != "" {
				path = list + "&cursor=" + url.QueryEscape(page.NextCursor)
			}
		}
		require.Equal(t, dags*jobs*16, len(seen), list)
	}

	measure := func(as *server, who string, paths ...string) {
		for _, path := range paths {
			var took []time.Duration
			for range asked {
				start := time.Now()
				require.NotEmpty(t, as.page(t, path))
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			t.Logf("%s%-32s median %6.1f ms, p99 %6.1f ms", who, path, took[asked/2].Seconds()*1000,
				took[asked*99/100].Seconds()*1000)
		}
	}
	measure(api, "", "/static/any/style.css", // the cost of a request without the database
		"/v1/datasets", "/v1/datasets?limit=500", "/v1/datasets?tag=fifth", "/v1/datasets?search=9_062_15",
		"/v1/datasets?search=nowhere", "/v1/datasets?search=mesurments+carier", "/v1/datasets?search=airport",
		"/datasets", "/datasets?search=9_062_15", "/datasets?search=mesurments+carier")

	// A reader, before anything is closed and after: a hundred datasets are, and twenty each that are made from them.
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "reader",
		Role: authz.RoleReader})
	require.NoError(t, err)
	reader := newServer(api.url, secret)
	measure(reader, "reader: ", "/v1/datasets", "/v1/datasets?limit=500", "/v1/datasets?search=mesurments+carier")
	w.exec(`
		UPDATE datasets SET read_roles = '{role:finance}' WHERE name LIKE 'dag\_0\_00%' AND name < 'dag_0_006_04'`)
	w.exec(`
		INSERT INTO generation_inputs (org_id, dataset_version, input_dataset, input_version)
		SELECT p.org_id, p.dataset_version, before.dataset_uuid, before.dataset_version
		FROM (SELECT *, row_number() OVER (ORDER BY dataset_uuid) AS n FROM dataset_pointers) AS p
		JOIN (SELECT *, row_number() OVER (ORDER BY dataset_uuid) AS n FROM dataset_pointers) AS before
			ON before.n = p.n - 100
		WHERE p.n BETWEEN 101 AND 2100`)
	w.exec(`ANALYZE`)
	measure(reader, "reader, with closed ones: ", "/v1/datasets", "/v1/datasets?limit=500",
		"/v1/datasets?search=mesurments+carier")
	measure(api, "admin, with closed ones: ", "/v1/datasets")
}

// page fetches a page, or an answer as text.
func (s *server) page(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := s.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	return string(text)
}
