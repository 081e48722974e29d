package registry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

func TestLatenessIsNewsOnce(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2027, 1, 10, hour, 0, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		before *registry.Noted
		late   *registry.Late
		news   bool
		after  *registry.Noted
	}{
		"the first": {nil, &registry.Late{Partition: "a", DueAt: at(1)}, true, &registry.Noted{Partition: "a", DueAt: at(1), Over: false}},
		"the same again": {&registry.Noted{Partition: "a", DueAt: at(1), Over: false}, &registry.Late{Partition: "a", DueAt: at(1)}, false,
			&registry.Noted{Partition: "a", DueAt: at(1), Over: false}},
		"the same, due otherwise": {&registry.Noted{Partition: "a", DueAt: at(1), Over: false}, &registry.Late{Partition: "a", DueAt: at(2)}, false,
			&registry.Noted{Partition: "a", DueAt: at(1), Over: false}},
		"the next": {&registry.Noted{Partition: "a", DueAt: at(1), Over: false}, &registry.Late{Partition: "b", DueAt: at(2)}, true,
			&registry.Noted{Partition: "b", DueAt: at(2), Over: false}},
		"one before, after a rollback": {&registry.Noted{Partition: "b", DueAt: at(2), Over: false}, &registry.Late{Partition: "a", DueAt: at(1)}, false,
			&registry.Noted{Partition: "b", DueAt: at(2), Over: false}},
		"there at last":                 {&registry.Noted{Partition: "a", DueAt: at(1), Over: false}, nil, false, &registry.Noted{Partition: "a", DueAt: at(1), Over: true}},
		"gone again":                    {&registry.Noted{Partition: "a", DueAt: at(1), Over: true}, &registry.Late{Partition: "a", DueAt: at(1)}, false, &registry.Noted{Partition: "a", DueAt: at(1), Over: true}},
		"whole: still, by a cutover":    {&registry.Noted{Partition: "", DueAt: at(1), Over: false}, &registry.Late{Partition: "", DueAt: at(2)}, false, &registry.Noted{Partition: "", DueAt: at(1), Over: false}},
		"whole: anew":                   {&registry.Noted{Partition: "", DueAt: at(1), Over: true}, &registry.Late{Partition: "", DueAt: at(2)}, true, &registry.Noted{Partition: "", DueAt: at(2), Over: false}},
		"whole: as it was, by rollback": {&registry.Noted{Partition: "", DueAt: at(1), Over: true}, &registry.Late{Partition: "", DueAt: at(1)}, false, &registry.Noted{Partition: "", DueAt: at(1), Over: true}},
		"never":                         {nil, nil, false, nil},
	} {
		next, news := c.before.After(c.late)
		require.Equal(t, c.news, news, name)
		require.Equal(t, c.after, next, name)
	}
}
