//go:build soak

package s3source_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/tests3"
)

var soakObjects = flag.Int("objects", 1_000_000, "how many objects the bucket of the soak test has, a thousand a day")

// A bucket of a million objects is listed once, a thousand a request; from then on a reading takes one request, and
// finds what is new. It prints how long that takes.
func TestSoakListing(t *testing.T) {
	const each = 1000
	s := tests3.Start(t)
	days, first := *soakObjects/each, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := range days {
		folder := filepath.Join(s.Folder(), first.AddDate(0, 0, day).Format(time.DateOnly))
		require.NoError(t, os.MkdirAll(folder, 0o755))
		for n := range each {
			name := filepath.Join(folder, fmt.Sprintf("%05d.csv", n))
			require.NoError(t, os.WriteFile(name, []byte("n\n1\n"), 0o644))
		}
	}
	r := newReader(t, s, daily, fields{"ascending_keys": true, "list_all_every": "24h"})

	began := time.Now()
	all, news, requests := r.list(t)
	t.Logf("%d objects, %d days: %d requests, %s", days*each, len(all.Units), requests, time.Since(began))
	require.Len(t, all.Units, days)
	require.Len(t, news, days)
	require.Equal(t, int64(days), requests)

	r.publish(all)
	_, news, _ = r.list(t)
	require.Empty(t, news)
	put(t, s, first.AddDate(0, 0, days).Format(time.DateOnly)+"/00000.csv", "n\n1\n")
	began = time.Now()
	part, news, requests := r.list(t)
	t.Logf("what is new behind them: %d requests, %s", requests, time.Since(began))
	require.Equal(t, []string{first.AddDate(0, 0, days).Format(time.DateOnly)}, news)
	require.True(t, part.Partial)
	require.LessOrEqual(t, requests, int64(2))
}
