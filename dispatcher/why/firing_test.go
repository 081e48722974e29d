package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSourceReasons(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		f      firing
		wanted bool
		texts  []string
	}{
		"waits": {firing{kind: "poll", registered: true, next: &at}, false,
			[]string{"the source fires next at 2026-01-02T03:04:05Z"}},
		"failed": {firing{kind: "cron", registered: true, next: &at, failed: "no route"}, false,
			[]string{"the source could not be read: no route", "the source fires next at 2026-01-02T03:04:05Z"}},
		"left out": {
			firing{kind: "poll", registered: true, next: &at, read: &at, units: 3, left: "1 file is left out"}, false,
			[]string{"the source was read at 2026-01-02T03:04:05Z: 1 file is left out",
				"the source fires next at 2026-01-02T03:04:05Z"}},
		"lacks": {firing{kind: "poll", registered: true, next: &at, read: &at, units: 3}, true,
			[]string{"the source was read at 2026-01-02T03:04:05Z, but this is not among its 3 partitions",
				"the source fires next at 2026-01-02T03:04:05Z"}},
		"manual":     {firing{kind: "manual"}, true, []string{"the source runs when somebody asks for it"}},
		"not served": {firing{kind: "poll"}, true, []string{"the source has not been read yet"}},
		"read by a build": {firing{kind: "poll", read: &at, units: 3}, false, []string{
			"the source was read at 2026-01-02T03:04:05Z, 3 partitions, and is read again once the version serves"}},
		"lacks what a build wants": {firing{kind: "poll", read: &at, units: 3}, true,
			[]string{"the source was read at 2026-01-02T03:04:05Z, but this is not among its 3 partitions"}},
		"not read": {firing{kind: "poll", failed: "unplugged"}, true,
			[]string{"the source could not be read: unplugged"}},
		"seed": {firing{kind: "deploy", registered: true}, false, []string{
			"its rows are those of the DAG's version, and change with a deploy"}},
		"webhook": {firing{kind: "webhook", registered: true}, true, []string{"the source waits for its webhook"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reasons := sourceReasons(c.f, c.wanted)
			addTexts(reasons)
			var said []string
			for _, r := range reasons {
				said = append(said, r.Text)
			}
			require.Equal(t, c.texts, said)
		})
	}
}
