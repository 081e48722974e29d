package s3source_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	put(t, s, "in/2026-01-01/a.csv", "n,x\n1,a\n")
	put(t, s, "in/2026-01-01/b.csv", "n,x\n2,b\n")
	put(t, s, "in/2026-01-02/a.csv", "n,x\n3,c\n")
	put(t, s, "rows.ndjson", `{"n": 1}`+"\n"+`{"n": 2}`+"\n")
	put(t, s, "bad.csv", "n\n1,2\n")
	allowed := func(more fields) fields {
		given := config(s, fields{"prefix": "in/"})
		for key, value := range more {
			given[key] = value
		}
		return given
	}
	first := &operators.PartitionRange{Key: "2026-01-01"}
	keys := secrets(s, "*", "http://*")

	operatortest.Run(t, local(t),
		operatortest.Case{Name: "days of several objects", Config: allowed(fields{"ascending_keys": true}),
			PartitionBy: daily, Partition: first, Secrets: keys,
			Want: map[string][]string{"out": {"'n': 1, 'x': a", "'n': 2, 'x': b"}}},
		operatortest.Case{Name: "one object", Config: config(s, fields{"pattern": "rows.ndjson", "format": "ndjson"}),
			Secrets: keys, Want: map[string][]string{"out": {"'n': 1", "'n': 2"}}},
		operatortest.Case{Name: "the columns to keep", Config: allowed(fields{"columns": []any{"x"}}),
			PartitionBy: daily, Partition: first, Secrets: keys,
			Want: map[string][]string{"out": {"'x': a", "'x': b"}}},
		operatortest.Case{Name: "no object", Config: allowed(nil), PartitionBy: daily,
			Partition: &operators.PartitionRange{Key: "2026-01-09"}, Secrets: keys,
			Fails: `there is no object for partition "2026-01-09"`},
		operatortest.Case{Name: "rows that do not fit", Config: config(s, fields{"pattern": "bad.csv"}), Secrets: keys,
			Fails: "bad.csv: "},
		operatortest.Case{Name: "too many bytes", Config: allowed(fields{"max_bytes": 10}), PartitionBy: daily,
			Partition: first, Secrets: keys, Fails: "more than 10 bytes", Permanent: true},
		operatortest.Case{Name: "an unknown bucket",
			Config: allowed(fields{"bucket": "none-such"}), PartitionBy: daily,
			Partition: first, Secrets: keys, Fails: "there is no such bucket", Permanent: true},

		operatortest.Case{Name: "a URL as the bucket",
			Config: allowed(fields{"bucket": "s3://a/b"}), Refused: "bucket: "},
		operatortest.Case{Name: "a pattern that leaves the prefix", Config: allowed(fields{"pattern": "../*.csv"}),
			Refused: "plain relative path"},
		operatortest.Case{Name: "an unknown placeholder", Config: allowed(fields{"pattern": "{day}.csv"}),
			Refused: "unknown placeholder {day}"},
		operatortest.Case{Name: "a path in the endpoint", Config: allowed(fields{"endpoint": "https://x.org/a"}),
			Refused: "endpoint: "},
		operatortest.Case{Name: "a user in the endpoint",
			Config:  allowed(fields{"endpoint": "https://u:p@x.example.com"}),
			Refused: "endpoint: "},
		operatortest.Case{Name: "a key in the document", Config: allowed(fields{"secret_access_key": "hunter2"}),
			Refused: "the key is written out"},
		operatortest.Case{Name: "half a key",
			Config: config(s, fields{"secret_access_key": nil}), Refused: "go together"},
		operatortest.Case{Name: "no duration", Config: allowed(fields{"list_all_every": "often"}),
			Refused: "must be a duration"},
		operatortest.Case{Name: "csv options of parquet",
			Config:  allowed(fields{"format": "parquet", "delimiter": ";"}),
			Refused: "delimiter is for format csv"},
	)
}

// A pattern has to be able to give objects to partitions, and ascending keys those of a partition one after the other.
func TestPatternsOfJobs(t *testing.T) {
	t.Parallel()
	hourly := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Hour}
	monthly := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month}
	yearly := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Year}
	for _, c := range []struct {
		pattern   string
		by        dag.Partitioning
		ascending bool
		want      string
	}{
		{"*.csv", dag.Partitioning{}, false, ""},
		{"*.csv", daily, false, "needs other placeholders"},
		{"*-{date}.csv", daily, false, ""},
		{"{date}/*.csv", daily, true, ""},
		{"dt={date}/{hour}/*.csv", hourly, true, ""},
		{"{date}/{hour}-*.csv", daily, true, ""},
		{"{date}.csv", monthly, true, ""},
		{"{month}/*.csv", monthly, true, ""},
		{"{quarter}/*.csv", yearly, true, ""},
		{"{year}/*.csv", yearly, true, ""},
		{"{date}/{hour}/{minute}.csv", hourly, true, ""},
		{"*/{year}.csv", yearly, true, "follow each other"},
		{"{key}/*.csv", byKey, true, ""},
		{"{key}.csv", byKey, true, ""},
		{"{date}/*.csv", byKey, true, ""},
		{"*.csv", dag.Partitioning{}, true, "follow each other"},
		{"*-{date}.csv", daily, true, "follow each other"},
		{"*/{key}.csv", byKey, true, "follow each other"},
		{"{key}-*.csv", byKey, true, "follow each other"},
		{"{key}/{date}.csv", daily, true, "follow each other"},
		{"{date}*{hour}.csv", hourly, true, "follow each other"},
	} {
		found := local(t).Spec().CheckJob(&dag.Job{Operator: "s3_source", Outputs: []string{"rows"}, PartitionBy: c.by,
			Config: fields{"bucket": "acme", "pattern": c.pattern, "format": "csv", "ascending_keys": c.ascending}})
		if c.want == "" {
			require.Nil(t, found, "%s by %s", c.pattern, c.by)
			continue
		}
		require.NotNil(t, found, "%s by %s", c.pattern, c.by)
		require.Contains(t, found.Message, c.want, c.pattern)
	}
}

// Keys go where an admin lets them go, and requests where the server's config lets them; no error shows a key.
func TestWhatRequestsMayReach(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	put(t, s, "2026-01-01/a.csv", "n\n1\n")
	e := operators.Enumeration{Config: config(s, nil), PartitionBy: daily, Secrets: secrets(s, s.Endpoint)}
	units, err := local(t).Enumerate(t.Context(), e)
	require.NoError(t, err)
	require.Len(t, units, 1)

	_, err = operator(t).Enumerate(t.Context(), e)
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.True(t, operators.IsPermanent(err))
	require.NotContains(t, err.Error(), s.SecretAccessKey)

	e.Secrets = secrets(s, "s3.example.com")
	_, err = local(t).Enumerate(t.Context(), e)
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "may not be sent to "+s.Endpoint)

	wrong := *s
	wrong.SecretAccessKey = strings.Repeat("x", 26)
	e.Secrets = secrets(&wrong, "*", "http://*")
	_, err = local(t).Enumerate(t.Context(), e)
	require.ErrorContains(t, err, "answered 403 SignatureDoesNotMatch")
	require.True(t, operators.IsPermanent(err))

	unsigned := config(s, fields{"access_key_id": nil, "secret_access_key": nil})
	_, err = local(t).Enumerate(t.Context(), operators.Enumeration{Config: unsigned, PartitionBy: daily})
	require.ErrorContains(t, err, "answered 403")

	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	t.Cleanup(elsewhere.Close)
	redirects := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirects.Close)
	e.Config, e.Secrets = config(s, fields{"endpoint": redirects.URL}), secrets(s, "*", "http://*")
	_, err = local(t).Enumerate(t.Context(), e)
	require.ErrorContains(t, err, "answered 307")
}

// A server cannot fill this process's memory, nor keep it from its other work for ever.
func TestAServerThatAnswersTooMuch(t *testing.T) {
	t.Parallel()
	const begin = `<?xml version="1.0"?><ListBucketResult><IsTruncated>%t</IsTruncated>` +
		`<NextContinuationToken>x</NextContinuationToken>`
	for name, c := range map[string]struct {
		status      int
		begin, more string // more: again and again
		want        string
	}{
		"an endless listing": {200, fmt.Sprintf(begin, false), "<Contents><Key>2026-01-01/a.csv</Key></Contents>",
			"does not answer as S3 does"},
		"a page of something else": {200, "<html>Log in</html>", "", "does not answer as S3 does"},
		"nothing":                  {200, "", "", "does not answer as S3 does"},
		"an endless error":         {400, "<Error><Code>", "xxxx", "answered 400"},
		"a page that leads to itself": {200, fmt.Sprintf(begin, true) + "</ListBucketResult>", "",
			"does not say where the listing goes on"},
		"a key that is too long": {200, fmt.Sprintf(begin, false) + "<Contents><Key>" + strings.Repeat("k", 2000) +
			"</Key></Contents></ListBucketResult>", "", "longer than those of S3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, err := io.WriteString(w, c.begin)
				for more := strings.Repeat(c.more, 1000); err == nil && more != ""; {
					_, err = io.WriteString(w, more)
				}
			}))
			t.Cleanup(server.Close)
			_, err := local(t).Enumerate(t.Context(), operators.Enumeration{PartitionBy: daily, Config: fields{
				"bucket": "acme", "endpoint": server.URL, "format": "csv", "pattern": "{date}/*.csv"}})
			require.ErrorContains(t, err, c.want)
		})
	}
}

// The keys of a job are sent to the server that its config names.
func TestWhereKeysGo(t *testing.T) {
	t.Parallel()
	to := local(t).Spec().SecretsTo
	for want, given := range map[string]fields{
		"https://s3.us-east-1.amazonaws.com":    {},
		"https://s3.eu-central-1.amazonaws.com": {"region": "eu-central-1"},
		"http://box.internal:9000":              {"region": "eu-central-1", "endpoint": "http://box.internal:9000/"},
	} {
		u, err := url.Parse(to(given))
		require.NoError(t, err)
		require.Equal(t, want, u.String())
	}
}
