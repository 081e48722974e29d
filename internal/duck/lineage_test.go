package duck_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
)

func TestLineage(t *testing.T) {
	t.Parallel()
	relations := map[string][]duck.Column{
		"flights": {{Name: "origin", Type: "VARCHAR"}, {Name: "delay", Type: "BIGINT"}, {Name: "day", Type: "DATE"}},
		"airports": {{Name: "iata", Type: "VARCHAR"}, {Name: "City", Type: "VARCHAR"},
			{Name: "pos", Type: "STRUCT(lat DOUBLE, lon DOUBLE)"}},
		"extra": {{Name: "origin", Type: "VARCHAR"}, {Name: "note", Type: "VARCHAR"}},
	}

	s := open(t, duck.Config{})
	for name, columns := range relations {
		require.NoError(t, s.Create(t.Context(), duck.Relation{Name: name, Schema: columns}))
	}

	for _, test := range []struct{ query, want string }{
		{"SELECT origin, Delay FROM flights", "origin=flights.origin identity, delay=flights.delay identity"},
		{"SELECT delay AS d, delay * 2 AS twice, 1 AS one, f.day FROM flights f",
			"d=flights.delay identity, twice=flights.delay expression, day=flights.day identity"},
		{"SELECT origin, avg(delay), count(*) AS n FROM flights GROUP BY origin",
			"origin=flights.origin identity, avg(delay)=flights.delay aggregate"},
		{"SELECT round(avg(delay) + 1) AS r, max(CASE WHEN day > '2024-01-01' THEN origin END) AS m FROM flights",
			"r=flights.delay aggregate, m=flights.day aggregate, m=flights.origin aggregate"},
		{"SELECT * FROM flights", "origin=flights.origin identity, delay=flights.delay identity, day=flights.day " +
			"identity"},
		{"SELECT a.* EXCLUDE (pos), delay FROM flights JOIN airports a ON a.iata = origin",
			"iata=airports.iata identity, City=airports.City identity, delay=flights.delay identity"},
		{"SELECT * FROM flights JOIN extra USING (origin)",
			"origin=extra.origin identity, origin=flights.origin identity, delay=flights.delay identity, " +
				"day=flights.day identity, note=extra.note identity"},
		{"SELECT origin AS o FROM flights JOIN extra USING (origin)",
			"o=extra.origin identity, o=flights.origin identity"},
		{"WITH d AS (SELECT origin AS o, sum(delay) AS s FROM flights GROUP BY 1) SELECT o, s + 1 AS s1 FROM d",
			"o=flights.origin identity, s1=flights.delay aggregate"},
		{"SELECT z FROM (SELECT delay FROM flights) t(z)", "z=flights.delay identity"},
		{"SELECT delay * 2 AS a, a + 1 AS b FROM flights", "a=flights.delay expression, b=flights.delay expression"},
		{"SELECT airports.pos.lat AS lat, pos.lon AS lon FROM airports",
			"lat=airports.pos expression, lon=airports.pos expression"},
		{"SELECT row_number() OVER (PARTITION BY origin ORDER BY delay) AS n FROM flights",
			"n=flights.delay expression"},
		{"SELECT delay FROM flights SEMI JOIN airports ON iata = origin", "delay=flights.delay identity"},
		{"FROM flights", "origin=flights.origin identity, delay=flights.delay identity, day=flights.day identity"},
		{"SELECT CAST(delay AS VARCHAR) AS d, origin || '!' AS o, origin IN ('a') AS i FROM flights",
			"d=flights.delay expression, o=flights.origin expression, i=flights.origin expression"},
		// Of a column that is unsure nothing is recorded; those beside it are.
		{"SELECT day, lat FROM flights, (SELECT unnest({'lat': pos}) FROM airports) u", "day=flights.day identity"},
		{"SELECT f.origin, e.origin AS o2 FROM flights f, extra e",
			"origin=flights.origin identity, o2=extra.origin identity"},
	} {
		q, err := s.Parse(t.Context(), test.query)
		require.NoError(t, err, test.query)

		view, err := s.View(t.Context(), q)
		require.NoError(t, err, test.query)
		output, err := s.Describe(t.Context(), view)
		require.NoError(t, err)
		origins := q.Lineage(relations, output)
		var got []string
		for _, o := range origins {
			got = append(got, fmt.Sprintf("%s=%s.%s %s", o.OutputColumn, o.Relation, o.Column, o.Transform))
		}
		require.Equal(t, strings.ToLower(test.want), strings.ToLower(strings.Join(got, ", ")), test.query)
	}
}
