package notices_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/operators"
)

// typesTold sends what is due, troubles that are over among it, and returns the types of all that was told.
func typesTold(w *dispatchertest.World, d *service.Service, r *receiver, now time.Time) (types []string) {
	w.T.Helper()
	_, err := d.Notices.AnnounceOver(w.T.Context(), now)
	require.NoError(w.T, err)
	sendNotices(w, d, now)
	got, _ := r.notices()
	for _, n := range got {
		types = append(types, n.Type)
	}
	return types
}

func TestAFailedCheckIsOverWhenItPasses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	r, d := newReceiver(t, w), local(w)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(strings.Replace(dispatchertest.Checked, "name: checked", "name: shop", 1) +
		"notify: [{ on: [failed_check], webhook: { secret: HOOK } }]\n")
	w.Probe.Put("raw", "2024-01-01", "abcdef")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"failed_check"}, typesTold(w, d, r, time.Now()))
	require.Equal(t, []string{"failed_check"}, typesTold(w, d, r, time.Now()), "it still fails")

	w.Probe.Put("raw", "2024-01-01", "abc")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"failed_check", "over"}, typesTold(w, d, r, time.Now()))
	require.Equal(t, []string{"failed_check", "over"}, typesTold(w, d, r, time.Now()), "once")
}

func TestAFailedDeployIsOverWithTheNext(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	r, d := newReceiver(t, w), local(w)
	w.Probe.Put("raw", "2024-01-01", "a")
	upkept := strings.NewReplacer("name: letters", "name: shop", "PerPartition\n",
		"PerPartition\n    max_attempts: 1\n").Replace(dispatchertest.Upkept) +
		"notify: [{ on: [failed_deploy], webhook: { secret: HOOK } }]\n"
	w.Serve(upkept)

	var fails atomic.Bool
	fails.Store(true)
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		if fails.Load() {
			return operators.Result{}, errors.New("no")
		}
		return operators.Result{}, nil
	})
	edited := dispatchertest.Edit(upkept, "tag: m", "tag: n")
	w.Deploy(edited)
	w.Settle()
	require.Equal(t, []string{"failed_deploy"}, typesTold(w, d, r, time.Now()))

	fails.Store(false)
	w.Serve(dispatchertest.Edit(upkept, "tag: m", "tag: o"))
	require.Equal(t, []string{"failed_deploy", "over"}, typesTold(w, d, r, time.Now()))
}

func TestADatasetThatCatchesUpIsToldOf(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	r, d := newReceiver(t, w), local(w)
	now := time.Now().UTC()
	first := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	w.Probe.Put("raw", first.AddDate(0, -2, 0).Format("2006-01"), "a")
	w.Serve(lateDAG)
	_, err := w.D.Notices.AnnounceLate(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"late"}, typesTold(w, d, r, time.Now()))

	w.Probe.Put("raw", first.AddDate(0, -1, 0).Format("2006-01"), "b")
	w.Probe.Put("raw", first.Format("2006-01"), "c")
	w.Poll()
	w.Settle()
	_, err = w.D.Notices.AnnounceLate(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"late", "over"}, typesTold(w, d, r, time.Now()))
}
