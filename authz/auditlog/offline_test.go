package auditlog_test

import (
	"encoding/csv"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/fault"
)

// An export of more than one page says offline what the server says.
func TestAnExportVerifiesOffline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	get := w.api(t) // makes a token, which is an entry
	w.exec(t, `INSERT INTO audit_log (id, org_id, actor, action, object, detail)
		SELECT gen_random_uuid(), $1, 'token:ci', 'thing.change', E'a "b"\r\n<c> & ' || n, jsonb_build_object('n', n, 'text', E'<é>\u2028\\')
		FROM generate_series(1, 2500) AS n`, w.acme.OrgID)
	require.NoError(t, w.sealer.Seal(t.Context()))
	w.write(t, w.acme, "thing.change", "thing.change")
	answer := get("/v1/audit/export")
	require.Equal(t, 200, answer.Code, answer.Body.String())
	require.Equal(t, []string{"application/x-ndjson", "2"},
		[]string{answer.Header().Get("Content-Type"), answer.Header().Get(auditlog.UnsealedHeader)})

	var online auditlog.ChainCheck
	require.NoError(t, json.Unmarshal(get("/v1/audit/verify").Body.Bytes(), &online))
	require.Equal(t, int64(2502), online.Entries)
	online.Unsealed = 0 // they are in no export
	head, err := auditlog.ParseHead(online.Head)
	require.NoError(t, err)
	exported := answer.Body.String()
	offline := func(text string, remembered auditlog.Head) auditlog.ChainCheck {
		found, err := auditlog.VerifyExport(strings.NewReader(text), remembered)
		require.NoError(t, err)
		return found
	}
	require.Equal(t, online, offline(exported, head))

	lines := strings.SplitAfter(exported, "\n")
	lines = lines[:len(lines)-1]
	change := func(n int, line string) string {
		all := slices.Clone(lines)
		all[n] = line
		return strings.Join(all, "")
	}
	line := func(old, new string) string { // the 2000th line with a change
		require.Contains(t, lines[1999], old)
		return change(1999, strings.Replace(lines[1999], old, new, 1))
	}
	swapped := slices.Clone(lines)
	swapped[9], swapped[10] = swapped[10], swapped[9]
	for name, tc := range map[string]struct {
		text, what string
		seq        int64
	}{
		"actor":   {line("token:ci", "token:xx"), "changed", 2000},
		"detail":  {line(`"n":`, `"n":1`), "changed", 2000},
		"twice":   {line(`"actor"`, `"actor":"token:xx","actor"`), "changed", 2000},
		"spelt":   {line(`"actor"`, `"Actor"`), "changed", 2000},
		"more":    {line(`{`, `{"note":"x",`), "changed", 2000},
		"spaced":  {change(1999, " "+lines[1999]), "changed", 2000},
		"org":     {line(w.acme.OrgID.String(), w.umbrella.OrgID.String()), "changed", 2000},
		"all org": {strings.ReplaceAll(exported, w.acme.OrgID.String(), w.umbrella.OrgID.String()), "changed", 1},
		"removed": {change(1999, ""), "removed", 2000},
		"begin":   {change(0, ""), "removed", 1},
		"twofold": {change(1999, lines[1999]+lines[1999]), "reordered", 2000},
		"swapped": {strings.Join(swapped, ""), "removed", 10},
		"cut":     {exported[:len(exported)-1], "changed", 2502},
		"end":     {strings.Join(lines[:2400], ""), "removed", 2401},
		"nothing": {"", "removed", 1},
		"forged":  {exported + strings.Replace(lines[2501], `"seq":2502`, `"seq":2503`, 1), "changed", 2503},
	} {
		found := offline(tc.text, head)
		require.False(t, found.Whole, name)
		require.Equal(t, []any{tc.what, tc.seq}, []any{found.Break.What, found.Break.Seq}, "%s: %s", name,
			found.Break.Text)
	}
	for name, text := range map[string]string{"cut": exported[:len(exported)-9], "no export": "hello\n", "empty": "",
		"csv": "org_id,seq\n"} {
		_, err := auditlog.VerifyExport(strings.NewReader(text), auditlog.Head{})
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
}

func TestExportsInCSVAndWithAFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	get := w.api(t)
	w.write(t, w.acme, "thing.change", "thing.remove")
	w.write(t, w.umbrella, "thing.change")
	require.NoError(t, w.sealer.Seal(t.Context()))
	answer := get("/v1/audit/export?format=csv&action=thing.*")
	require.Equal(t, 200, answer.Code)
	require.Equal(t, "text/csv", answer.Header().Get("Content-Type"))
	records, err := csv.NewReader(answer.Body).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 3)
	require.Equal(t, []string{"org_id", "seq", "hash", "id", "at", "actor", "action", "object", "outcome", "detail",
		"request_id"}, records[0])
	require.Equal(t, []string{w.acme.OrgID.String(), "4"}, records[2][:2])
	require.Equal(t, []string{"token:root", "thing.remove", "thing 1", "done",
		"{\"after\": [\"<é> & \u2028\", 1.5, 1], \"before\": null}", "r-1"}, records[2][5:])

	some, err := auditlog.VerifyExport(get("/v1/audit/export?action=thing.*").Body, auditlog.Head{})
	require.NoError(t, err)
	require.Equal(t, "removed", some.Break.What, "what a filter left out is missing")
	require.Equal(t, 422, get("/v1/audit/export?format=xml").Code)
	require.Equal(t, 422, get("/v1/audit/export?action=*x").Code)
	require.Equal(t, 422, get("/v1/audit/verify?head=7").Code)
}
