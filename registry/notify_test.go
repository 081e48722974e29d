package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLatenessIsNewsOnce(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2027, 1, 10, hour, 0, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		before *noted
		late   *Late
		news   bool
		after  *noted
	}{
		"the first":                     {nil, &Late{"a", at(1)}, true, &noted{"a", at(1), false}},
		"the same again":                {&noted{"a", at(1), false}, &Late{"a", at(1)}, false, &noted{"a", at(1), false}},
		"the same, due otherwise":       {&noted{"a", at(1), false}, &Late{"a", at(2)}, false, &noted{"a", at(1), false}},
		"the next":                      {&noted{"a", at(1), false}, &Late{"b", at(2)}, true, &noted{"b", at(2), false}},
		"one before, after a rollback":  {&noted{"b", at(2), false}, &Late{"a", at(1)}, false, &noted{"b", at(2), false}},
		"there at last":                 {&noted{"a", at(1), false}, nil, false, &noted{"a", at(1), true}},
		"gone again":                    {&noted{"a", at(1), true}, &Late{"a", at(1)}, false, &noted{"a", at(1), true}},
		"whole: still, by a cutover":    {&noted{"", at(1), false}, &Late{"", at(2)}, false, &noted{"", at(1), false}},
		"whole: anew":                   {&noted{"", at(1), true}, &Late{"", at(2)}, true, &noted{"", at(2), false}},
		"whole: as it was, by rollback": {&noted{"", at(1), true}, &Late{"", at(1)}, false, &noted{"", at(1), true}},
		"never":                         {nil, nil, false, nil},
	} {
		next, news := c.before.after(c.late)
		require.Equal(t, c.news, news, name)
		require.Equal(t, c.after, next, name)
	}
}
