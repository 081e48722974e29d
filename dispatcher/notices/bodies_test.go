package notices

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/notices/formats"
	"github.com/dagctl/dagctl/registry"
)

var update = flag.Bool("update", false, "write the golden files")

// Each kind of notice has its body in each format in testdata/FORMAT.
func TestBodies(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 9, 30, 0, 0, time.UTC)
	task := uuid.MustParse("0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69")
	n := &Notices{base: "https://dagctl.example.com"}
	dead := NoticeData{Job: "orders", TaskID: &task, Attempt: 5, Reason: "error",
		Error: "python3: exit status 3\noutput \"orders\" has no <column> `7`"}
	many := dead
	many.Count, many.Tasks = 1234, []uuid.UUID{task}
	for name, c := range map[string]struct {
		kind string
		data NoticeData
	}{
		"dead":      {noticeDead, dead},
		"dead_many": {noticeDead, many},
		"late": {noticeLate, NoticeData{Job: "orders", Dataset: "shop_orders", Partition: "2026-01-30",
			DueAt: &at}},
		"failed_deploy": {noticeFailedDeploy, NoticeData{Version: 7,
			Error: "2 tasks of shop/orders are out of attempts"}},
		"failed_check": {noticeFailedCheck, NoticeData{Job: "orders", TaskID: &task, Checks: []NoticeCheck{
			{Name: "not_null", Severity: "error", Outcome: "fail", Failures: 3, Found: "3 rows"},
			{Name: "row_count", Severity: "warn", Outcome: "fail", Failures: 1, Found: "0 rows, fewer than 1"}}}},
		"over": {noticeOver, NoticeData{Job: "orders", Over: noticeDead}},
		"test": {noticeTest, NoticeData{}},
	} {
		p := payload{Topic: "dagctl/acme/shop/" + c.kind + "/orders webhook X",
			Receiver: registry.Receiver{Secret: "X"}, Notice: Notice{ID: "msg_1", Type: c.kind, At: at, Data: c.data}}
		p.Notice.Data.Org, p.Notice.Data.DAG = "acme", "shop"
		p.Notice.Data.Link = n.link(p.Notice)

		for _, format := range []string{"", dag.NotifySlack, dag.NotifyTeams, dag.NotifyPagerDuty} {
			p.Format = format
			body, err := bodyOf(p, "KEY")
			require.NoError(t, err)
			var out bytes.Buffer
			require.NoError(t, json.Indent(&out, body, "", "  "))
			golden(t, filepath.Join(formatOf(format), name+".json"), out.Bytes())
		}
		mail, err := formats.Mail(p.message(), "dagctl@example.com", []string{"a@example.com", "b@example.com"})
		require.NoError(t, err)
		golden(t, filepath.Join("email", name+".txt"), bytes.ReplaceAll(mail, []byte("\r\n"), []byte("\n")))
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, append(bytes.TrimRight(got, "\n"), '\n'), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(append(bytes.TrimRight(got, "\n"), '\n')), name)
}
