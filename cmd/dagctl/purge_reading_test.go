package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What reads a partition that somebody purges ends, however slowly it is read: an answer that has begun is cut off, and
// another one says why.
func TestAPurgeEndsWhatReadsTheData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	begin := func(path, body string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+w.tokens[reader])
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		return response
	}
	const many = `FROM daily_highest d, range(100000000000) a`
	rows := begin("/v1/query/export", `{"format": "csv", "sql": "SELECT a.range AS n, d.station `+many+`"}`)
	defer rows.Body.Close()
	require.Equal(t, http.StatusOK, rows.StatusCode)

	type answer struct {
		status int
		text   string
	}
	answers := make(chan answer, 2)
	const sql = `"sql": "SELECT count(*) ` + many + ` WHERE hash(a.range) = hash(d.station)"`
	for _, request := range [][2]string{
		{"/v1/query", `{` + sql + `}`},
		{"/v1/query/export", `{"format": "csv", ` + sql + `}`},
	} {
		go func() {
			response := begin(request[0], request[1])
			defer response.Body.Close()
			text, _ := io.ReadAll(response.Body)
			answers <- answer{response.StatusCode, string(text)}
		}()
	}
	eventually(t, "all three run", func() (bool, error) {
		var held int
		err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM reader_leases").Scan(&held)
		return held == 3, err
	})

	must(t, w.env(t, admin), "datasets", "purge", "daily_highest", "--partition", "2026-01-02", "--reason", "asked to",
		"--break-window", "--yes")
	for range 2 {
		a := <-answers
		require.Equal(t, http.StatusConflict, a.status, a.text)
		require.Contains(t, a.text, "partition 2026-01-02 of dataset daily_highest was purged while this read it")
	}
	_, err := io.Copy(io.Discard, rows.Body) // it has not been read until now
	require.Error(t, err, "the answer is cut off")
	eventually(t, "nothing is held", func() (bool, error) {
		var held int
		err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM reader_leases`).Scan(&held)
		return held == 0, err
	})
	require.Contains(t, must(t, w.env(t, reader), "datasets", "export", "daily_highest", "-o", "-", "--format", "csv"),
		"harbour")
}
