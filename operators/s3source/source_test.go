package s3source_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/s3source"
)

type fields = map[string]any

var (
	daily = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	byKey = dag.Partitioning{Kind: dag.ByKey}
)

func operator(t *testing.T, allowed ...string) operators.Resumer {
	t.Helper()
	op, err := s3source.New(operators.Options{Engines: enginetest.Engines(), AllowedAddresses: allowed})
	require.NoError(t, err)
	return op.(operators.Resumer)
}

// local returns an operator that may reach this machine.
func local(t *testing.T) operators.Resumer { return operator(t, "127.0.0.0/8") }

// config returns the config of a source that reads a server's bucket.
func config(s *tests3.Server, more fields) fields {
	c := fields{"bucket": s.Bucket, "endpoint": s.Endpoint, "format": "csv", "pattern": "{date}/*.csv",
		"access_key_id": s.AccessKeyID, "secret_access_key": fields{"secret": "S3"}}
	for key, value := range more {
		if c[key] = value; value == nil {
			delete(c, key)
		}
	}
	return c
}

// secrets returns the key of a server, bound to a host.
func secrets(s *tests3.Server, hosts ...string) map[string]secret.Value {
	return map[string]secret.Value{"S3": secret.New("S3", s.SecretAccessKey, hosts)}
}

func put(t *testing.T, s *tests3.Server, key, content string) {
	t.Helper()
	_, err := s.Client().PutObject(t.Context(), &s3.PutObjectInput{Bucket: &s.Bucket, Key: &key,
		Body: bytes.NewReader([]byte(content))})
	require.NoError(t, err)
}

func remove(t *testing.T, s *tests3.Server, key string) {
	t.Helper()
	_, err := s.Client().DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &s.Bucket, Key: &key})
	require.NoError(t, err)
}

// run reads a unit and returns the values of its column n and the version that was read.
func run(
	t *testing.T, op operators.Operator, config fields, s *tests3.Server, u operators.Unit,
) ([]string, string, error) {
	t.Helper()
	task := &operators.Task{
		Assignment: operators.Assignment{TaskID: uuid.New(), Attempt: 1, DAG: "d", Job: "j", Config: config,
			Payload: u.Payload, PartitionBy: daily, Partition: &operators.PartitionRange{Key: u.Partition},
			Secrets: secrets(s, "*", "http://*")},
		Scratch: t.TempDir(), OutputDirs: []string{t.TempDir()}, Progress: func(int, string) {},
		Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(task.Use(enginetest.Engines()))
	result, err := op.Run(t.Context(), task)
	if err != nil {
		return nil, "", err
	}

	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	defer session.Close()
	files, err := filepath.Glob(filepath.Join(task.OutputDirs[0], "*.parquet"))
	require.NoError(t, err)
	found, err := session.Query(t.Context(), "SELECT CAST(n AS VARCHAR) FROM "+duck.ReadParquet(files))
	require.NoError(t, err)
	defer found.Close()
	var rows []string
	for found.Next() {
		rows = append(rows, "")
		require.NoError(t, found.Scan(&rows[len(rows)-1]))
	}
	return rows, result.SourceVersion, found.Err()
}

// reader keeps what the platform keeps of a source: its position, and what its partitions were made from.
type reader struct {
	op    operators.Resumer
	e     operators.Enumeration
	lists *atomic.Int64 // requests that list
}

// newReader returns a source that reads through a proxy, which counts the requests that list.
func newReader(t *testing.T, s *tests3.Server, by dag.Partitioning, more fields) *reader {
	t.Helper()
	r := &reader{op: local(t), lists: new(atomic.Int64)}
	target, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host // which is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Query().Get("list-type") == "2" {
			r.lists.Add(1)
		}
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(front.Close)

	given := config(s, more)
	given["endpoint"] = front.URL
	r.e = operators.Enumeration{Config: given, PartitionBy: by, Known: map[string]string{},
		Secrets: secrets(s, "*", "http://*"),
		Now:     time.Now()}
	return r
}

// list lists what the source sees, and returns the partitions that are news and how many requests it took.
func (r *reader) list(t *testing.T) (found operators.Listing, news []string, requests int64) {
	t.Helper()
	before := r.lists.Load()
	found, err := r.op.Resume(t.Context(), r.e)
	require.NoError(t, err)
	r.e.Position = found.Position
	for _, u := range found.Units {
		if r.e.Known[u.Partition] != u.Version {
			news = append(news, u.Partition)
		}
	}
	return found, news, r.lists.Load() - before
}

// publish makes partitions from what was listed.
func (r *reader) publish(found operators.Listing) {
	for _, u := range found.Units {
		r.e.Known[u.Partition] = u.Version
	}
}

// seed puts objects of days: as many as there are to have, in so many days.
func seed(t *testing.T, s *tests3.Server, days, each int) {
	t.Helper()
	group, _ := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	client, first := s.Client(), time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := range days {
		for n := range each {
			group.Go(func() error {
				key := fmt.Sprintf("%s/%05d.csv", first.AddDate(0, 0, day).Format(time.DateOnly), n)
				_, err := client.PutObject(context.WithoutCancel(t.Context()), &s3.PutObjectInput{Bucket: &s.Bucket,
					Key: &key, Body: bytes.NewReader([]byte("n\n" + key + "\n"))})
				return err
			})
		}
	}
	require.NoError(t, group.Wait())
}

// Of 5,000 objects, all but the last day's are listed once; what is new behind them is found by one request, what came
// late or was overwritten by the next listing of everything.
func TestAListingGoesOnWhereAllWasRead(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	seed(t, s, 50, 100)
	r := newReader(t, s, daily, fields{"ascending_keys": true, "list_all_every": "1h"})

	all, news, requests := r.list(t)
	require.Len(t, all.Units, 50)
	require.Len(t, news, 50)
	require.Equal(t, int64(5), requests)
	_, news, requests = r.list(t)
	require.Len(t, news, 50, "nothing is settled before it is published")
	require.Equal(t, int64(5), requests)

	r.publish(all)
	_, news, requests = r.list(t)
	require.Empty(t, news)
	require.Equal(t, int64(5), requests, "it learns that all is published")
	part, news, requests := r.list(t)
	require.Empty(t, news)
	require.Equal(t, int64(1), requests)
	require.True(t, part.Partial)
	require.Equal(t, 49, part.Before)
	require.Len(t, part.Units, 1, "the last day, of which more may come")
	require.Equal(t, all.Units[49], part.Units[0])

	// New objects of the last day and behind it.
	put(t, s, "2020-02-19/99999.csv", "n\n1\n")
	put(t, s, "2020-02-20/00000.csv", "n\n1\n")
	part, news, requests = r.list(t)
	require.Equal(t, []string{"2020-02-19", "2020-02-20"}, news)
	require.Equal(t, int64(1), requests)
	r.publish(part)

	// What comes late and what is overwritten lies before the position.
	put(t, s, "2020-01-05/99999.csv", "n\n1\n")
	put(t, s, "2020-02-01/00000.csv", "n\n2\n")
	_, news, requests = r.list(t)
	require.Empty(t, news)
	require.Equal(t, int64(1), requests)
	r.e.Now = r.e.Now.Add(time.Hour)
	all, news, requests = r.list(t)
	require.Equal(t, []string{"2020-01-05", "2020-02-01"}, news)
	require.Equal(t, int64(6), requests)
	require.False(t, all.Partial)
	require.Len(t, all.Units, 51)

	// The position stays before them until they are published.
	part, news, _ = r.list(t)
	require.Equal(t, []string{"2020-01-05", "2020-02-01"}, news)
	require.Equal(t, 4, part.Before)
	r.publish(all)
	_, _, _ = r.list(t)
	part, news, requests = r.list(t)
	require.Empty(t, news)
	require.Equal(t, int64(1), requests)
	require.Equal(t, 50, part.Before)
}

// An object whose name is no day is left out of every listing that reaches it, and holds up no other one.
func TestAnObjectWhoseNameIsNoPartition(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	seed(t, s, 3, 2)
	put(t, s, "2020-01-32/00000.csv", "n\n1\n")
	put(t, s, "2020-01-32/00001.csv", "n\n1\n")
	r := newReader(t, s, daily, fields{"ascending_keys": true, "list_all_every": "1h"})
	all, news, _ := r.list(t)
	require.Len(t, news, 3)
	require.Equal(t, "2 files are left out: 2020-01-32/00000.csv: 2020-01-32 is not a date; "+
		"rename the file or move it away", all.LeftOut.Text())

	r.publish(all)
	r.list(t)
	part, news, _ := r.list(t)
	require.True(t, part.Partial)
	require.Empty(t, news)
	require.Equal(t, all.LeftOut.Text(), part.LeftOut.Text())
}

// An object that comes late to the partition at the position brings the others of that partition with it.
func TestALateObjectAtThePosition(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	seed(t, s, 3, 2)
	r := newReader(t, s, daily, fields{"ascending_keys": true})
	all, _, _ := r.list(t)
	r.publish(all)
	_, _, _ = r.list(t)
	part, _, _ := r.list(t)
	require.Equal(t, 2, part.Before)

	put(t, s, "2020-01-02/zzz.csv", "n\n1\n")
	found, news, _ := r.list(t)
	require.Equal(t, []string{"2020-01-02"}, news)
	require.False(t, found.Partial)
	var payload struct{ Objects []string }
	require.NoError(t, json.Unmarshal(found.Units[1].Payload, &payload))
	require.Equal(t, []string{"2020-01-02/00000.csv", "2020-01-02/00001.csv", "2020-01-02/zzz.csv"}, payload.Objects)
}

// Objects are identified by their content, and their keys may have any characters.
func TestWhatIsNews(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	put(t, s, "in put/a+b ü&%.csv", "n\n1\n")
	put(t, s, "in put/deep/er.csv", "n\n1\n")
	put(t, s, "in put/other.txt", "n\n1\n")
	put(t, s, "elsewhere/c.csv", "n\n1\n")
	r := newReader(t, s, byKey, fields{"prefix": "in put/", "pattern": "{key}.csv"})
	all, news, _ := r.list(t)
	require.Equal(t, []string{"a+b ü&%"}, news)
	require.Nil(t, all.Position, "keys do not ascend")
	r.publish(all)

	put(t, s, "in put/a+b ü&%.csv", "n\n1\n")
	_, news, _ = r.list(t)
	require.Empty(t, news, "it has the same content")
	put(t, s, "in put/a+b ü&%.csv", "n\n2\n")
	put(t, s, "in put/c.csv", "n\n3\n")
	all, news, _ = r.list(t)
	require.Equal(t, []string{"a+b ü&%", "c"}, news)
	rows, version, err := run(t, r.op, r.e.Config, s, all.Units[0])
	require.NoError(t, err)
	require.Equal(t, all.Units[0].Version, version)
	require.Equal(t, []string{"2"}, rows)

	// A run says what it has read, which may be newer than what was listed; and it reads no other objects.
	put(t, s, "in put/c.csv", "n\n4\n")
	rows, version, err = run(t, r.op, r.e.Config, s, all.Units[1])
	require.NoError(t, err)
	require.NotEqual(t, all.Units[1].Version, version)
	require.Equal(t, []string{"4"}, rows)
	remove(t, s, "in put/c.csv")
	_, _, err = run(t, r.op, r.e.Config, s, all.Units[1])
	require.ErrorContains(t, err, "read object in put/c.csv of bucket")
	require.False(t, operators.IsPermanent(err))
	_, _, err = run(t, r.op, r.e.Config, s,
		operators.Unit{Partition: "x", Payload: json.RawMessage(`{"objects": ["elsewhere/c.csv"]}`)})
	require.ErrorContains(t, err, "none of those that `prefix` and `pattern` select")

	remove(t, s, "in put/a+b ü&%.csv")
	all, _, _ = r.list(t)
	require.Empty(t, all.Units)
}
