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
	late := func(partition string, due int) *registry.Late {
		return &registry.Late{Partition: partition, DueAt: at(due)}
	}
	noted := func(partition string, due int, over bool) *registry.Noted {
		return &registry.Noted{Partition: partition, DueAt: at(due), Over: over}
	}
	for name, c := range map[string]struct {
		before *registry.Noted
		late   *registry.Late
		news   bool
		after  *registry.Noted
	}{
		"the first":                     {nil, late("a", 1), true, noted("a", 1, false)},
		"the same again":                {noted("a", 1, false), late("a", 1), false, noted("a", 1, false)},
		"the same, due otherwise":       {noted("a", 1, false), late("a", 2), false, noted("a", 1, false)},
		"the next":                      {noted("a", 1, false), late("b", 2), true, noted("b", 2, false)},
		"one before, after a rollback":  {noted("b", 2, false), late("a", 1), false, noted("b", 2, false)},
		"there at last":                 {noted("a", 1, false), nil, false, noted("a", 1, true)},
		"gone again":                    {noted("a", 1, true), late("a", 1), false, noted("a", 1, true)},
		"whole: still, by a cutover":    {noted("", 1, false), late("", 2), false, noted("", 1, false)},
		"whole: anew":                   {noted("", 1, true), late("", 2), true, noted("", 2, false)},
		"whole: as it was, by rollback": {noted("", 1, true), late("", 1), false, noted("", 1, true)},
		"never":                         {nil, nil, false, nil},
	} {
		next, news := c.before.After(c.late)
		require.Equal(t, c.news, news, name)
		require.Equal(t, c.after, next, name)
	}
}
