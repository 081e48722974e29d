package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/rest"
)

// A plan refuses paths that the org's sources may not read on this server, with their place in the file.
func TestPathsOutsideOfAnOrgsFoldersAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan := func(path string) (status int, problem rest.Problem) {
		yaml := "name: landed\njobs:\n  - name: raw\n    operator: file_source\n    source: { kind: manual }\n" +
			fmt.Sprintf("    config: { path: %q, format: csv }\n", path)
		body, err := json.Marshal(map[string]string{"yaml": yaml})
		require.NoError(t, err)
		status, text := w.send(t, admin, http.MethodPost, "/v1/dags/landed/plan", "application/json",
			strings.NewReader(string(body)))
		require.NoError(t, json.Unmarshal([]byte(text), &problem))
		return status, problem
	}

	for _, inside := range []string{"landing", filepath.Join(w.roots, "landing"), "a/../landing"} {
		status, problem := plan(inside)
		require.Equal(t, http.StatusOK, status, "%s: %+v", inside, problem)
	}
	for _, outside := range []string{"/etc", "../landing", w.files, filepath.Join(w.roots, "..", "landing")} {
		status, problem := plan(outside)
		require.Equal(t, http.StatusUnprocessableEntity, status, outside)
		require.Len(t, problem.Errors, 1, outside)
		require.Contains(t, problem.Errors[0].Location, "dag.yaml:6:", outside)
	}
}
