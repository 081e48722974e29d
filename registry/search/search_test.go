package search_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry/search"
)

// shelf is an index with the entries of all that is in it.
type shelf struct {
	index   search.Index
	entries []search.Entry
	names   map[uuid.UUID]string
	docs    map[string]search.Document
}

func newShelf(docs ...search.Document) *shelf {
	s := &shelf{names: map[uuid.UUID]string{}, docs: map[string]search.Document{}}
	for i, doc := range docs {
		e := search.Entry{Stamp: 1}
		binary.BigEndian.PutUint32(e.ID[:], uint32(i+1))
		s.index.Put(e, doc)
		s.entries, s.names[e.ID], s.docs[doc[0].Text] = append(s.entries, e), doc[0].Text, doc
	}
	return s
}

// find returns the names that a search finds, in order.
func (s *shelf) find(text string) (names []string) {
	for _, hit := range s.index.Rank(search.Parse(text), s.entries) {
		names = append(names, s.names[hit.ID])
	}
	return names
}

var flights = []search.Document{
	{{search.Name, "airport_delays"}, {search.Tag, "flights"}, {search.Owner, "ops@example.com"},
		{search.Column, "airport"}, {search.Column, "avgDelayMinutes"}, {search.Description, "Mean delay of a day"}},
	{{search.Name, "worst_airports"}, {search.Tag, "flights"}, {search.Owner, "ops@example.com"},
		{search.Column, "rank"}, {search.Description, "The airports with the longest delays"}},
	{{search.Name, "flights"}, {search.Owner, "data-platform"}, {search.Column, "tail_number"},
		{search.Description, "Every flight, as the carriers report it"},
		{search.ColumnDescription, "tail_number: registration of the aircraft"}},
	{{search.Name, "sales.daily"}, {search.Tag, "finance"}, {search.Owner, "Zoë"}, {search.Column, "amount"},
		{search.Description, "Umsätze je Tag, Zürich"}},
	{{search.Name, "sales_8"}, {search.Column, "amount"}},
	{{search.Name, "sales_9"}, {search.Column, "amount"}},
}

func TestRanking(t *testing.T) {
	t.Parallel()
	s := newShelf(flights...)
	for text, want := range map[string][]string{
		"airport_delays":             {"airport_delays", "worst_airports"},
		"delays airport":             {"airport_delays", "worst_airports"},
		"aiport delys":               {"airport_delays"},
		"airportdelays":              {"airport_delays"},
		"AirportDelays":              {"airport_delays", "worst_airports"},
		"iarport":                    {"airport_delays"}, // two letters swapped
		"flights":                    {"flights", "airport_delays", "worst_airports"},
		"fligths":                    {"flights", "airport_delays", "worst_airports"},
		"minutes":                    {"airport_delays"},
		"delay minutes":              {"airport_delays"},
		"tail":                       {"flights"},
		"aircraft":                   {"flights"},
		"data platform":              {"flights"},
		"zoë":                        {"sales.daily"},
		"umsatze":                    {"sales.daily"},
		"züri":                       {"sales.daily"},
		"sales daily":                {"sales.daily"},
		"s.da":                       {"sales.daily"},
		"sales":                      {"sales.daily", "sales_8", "sales_9"},
		"sales_8":                    {"sales_8"}, // a digit is no typing error
		"sales amuont":               {"sales.daily", "sales_8", "sales_9"},
		"airport finance":            nil, // every word has to match
		"xyzzy":                      nil,
		"_":                          {"airport_delays", "sales_8", "sales_9", "worst_airports"},
		"":                           nil,
		"' OR 1=1 --":                nil,
		strings.Repeat("a_b ", 3000): nil,
	} {
		require.Equal(t, want, s.find(text), "%q", text)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	s := newShelf(flights...)
	for _, tc := range []struct{ name, query, field, text string }{
		{"airport_delays", "aiport", "name", "airport_delays"},
		{"airport_delays", "minutes", "column", "avgDelayMinutes"},
		{"airport_delays", "mean", "description", "Mean delay of a day"},
		{"flights", "aircraft", "column description", "tail_number: registration of the aircraft"},
		{"flights", "platfrom", "owner", "data-platform"},
		{"sales.daily", "finanace", "tag", "finance"},
		{"worst_airports", "_a", "name", "worst_airports"},
		{"airport_delays", "airpotrdelays", "name", "airport_delays"},
	} {
		got := search.Parse(tc.query).Explain(s.docs[tc.name])
		require.Equal(t, &search.Match{Field: tc.field, Text: tc.text}, got, tc.query)
	}
	require.Nil(t, search.Parse("xyzzy").Explain(flights[0]))

	long := strings.Repeat("word ", 100) + "needle" + strings.Repeat(" word", 100)
	got := search.Parse("needle").Explain(search.Document{{search.Name, "n"}, {search.Description, long}})
	require.Contains(t, got.Text, "needle")
	require.Less(t, len(got.Text), 200)
}

// A search looks at the documents that it names, as they are named, and their scores depend on no others.
func TestWhatIsNotNamedHasNoPart(t *testing.T) {
	t.Parallel()
	s := newShelf(flights...)
	q := search.Parse("flights")
	all := s.index.Rank(q, s.entries)
	some := s.index.Rank(q, s.entries[1:2])
	require.Len(t, some, 1)
	require.Contains(t, all, some[0], "the same score alone as among others")

	changed := slices.Clone(s.entries)
	changed[2].Stamp = 2
	require.Equal(t, []uuid.UUID{changed[2].ID}, s.index.Missing(changed))
	require.NotContains(t, s.index.Rank(q, changed), all[0], "the index has an older state of it")
	s.index.Put(changed[2], search.Document{{search.Name, "journeys"}})
	require.Empty(t, s.index.Missing(changed))
	require.Len(t, s.index.Rank(q, changed), 2)
	require.Equal(t, changed[2].ID, s.index.Rank(search.Parse("journeys"), changed)[0].ID)
}

func FuzzSearch(f *testing.F) {
	f.Add("airport_delays", "aiport")
	f.Add("Ünïcode\xff", "\x00 ")
	f.Add("airport_delays", "airpotrdelays")
	f.Fuzz(func(t *testing.T, text, query string) {
		q := search.Parse(query)
		s := newShelf(search.Document{{search.Name, text}, {search.Description, text}})
		found := s.find(query)
		if len(found) > 0 {
			require.NotNil(t, q.Explain(search.Document{{search.Name, text}, {search.Description, text}}))
		}
		for _, w := range search.Words(text) {
			require.NotEmpty(t, s.find(w), "%q in %q", w, text)
		}
	})
}

// BenchmarkRank searches 10,000 documents of 20 columns.
func BenchmarkRank(b *testing.B) {
	words := strings.Fields("airport delay carrier route minute fare ticket price order customer region store item " +
		"stock")
	var docs []search.Document
	for i := range 10_000 {
		name := fmt.Sprintf("%s_%s_%d", words[i%14], words[i/14%14], i)
		doc := search.Document{{search.Name, name}, {search.Description, "Measurements of " + name}}
		for c := range 20 {
			doc = append(doc, search.Text{Field: search.Column, Text: fmt.Sprintf("%s_%d_%d", words[c%14], c, i)})
		}
		docs = append(docs, doc)
	}
	s := newShelf(docs...)
	for b.Loop() {
		require.NotEmpty(b, s.index.Rank(search.Parse("aiport dely"), s.entries))
	}
}
