package storage_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

// assumed answers AssumeRole as the STS API reference describes it, and keeps the request. No installable server knows
// the action. TestPolicyOfCredentials tests with a third-party policy evaluator that the policy allows what it should
// and no more; that AWS accepts the request rests on the reference and the SDK alone.
type assumed struct {
	mu     sync.Mutex
	asked  []url.Values
	signed []string
	fail   func(ask url.Values) (status int, code string)
}

func (a *assumed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked, a.signed = append(a.asked, r.PostForm), append(a.signed, r.Header.Get("Authorization"))
	w.Header().Set("Content-Type", "text/xml")
	if a.fail != nil {
		if status, code := a.fail(r.PostForm); status != 0 {
			w.WriteHeader(status)
			fmt.Fprintf(w,
				`<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
				<Code>%s</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>`, code)
			return
		}
	}

	fmt.Fprint(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
		<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/demo/x</Arn>
			<AssumedRoleId>ARO123:x</AssumedRoleId></AssumedRoleUser>
		<Credentials><AccessKeyId>ASIAIOSFODNN7EXAMPLE</AccessKeyId>
			<SecretAccessKey>wJalrXUtnFEMI</SecretAccessKey><SessionToken>AQoDYXdz</SessionToken>
		<Expiration>2031-01-01T00:15:00Z</Expiration></Credentials>
		<PackedPolicySize>6</PackedPolicySize></AssumeRoleResult>
		<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>`)
}

func withRole(t *testing.T, answers *assumed) *storage.S3Config {
	t.Helper()
	sts := httptest.NewServer(answers)
	t.Cleanup(sts.Close)
	return &storage.S3Config{
		Bucket: "acme-bucket", Prefix: "prod", Region: "eu-central-1", AccessKeyID: "AKIASERVER",
		SecretAccessKey: "secret", STSEndpoint: sts.URL,
		RoleARN: "arn:aws:iam::123456789012:role/dagctl-{org}", ExternalID: "ext-{org}",
	}
}

// granted returns a grant with inputs of n objects each.
func granted(objects ...int) storage.Grant {
	g := storage.Grant{Org: uuid.New(), OrgSlug: "acme", Task: uuid.New(), Attempt: 2, Outputs: []int{0, 2}}
	for _, n := range objects {
		in := storage.GrantedInput{Generation: attempt(storage.Parquet, "all").Generation}
		var p storage.Partition
		for i := range n {
			p.Files = append(p.Files, storage.File{Path: fmt.Sprintf("acme/%s/%s/all/%s-1/%05d.parquet",
				in.Generation.Dataset, in.Generation.Version, uuid.New(), i)})
		}
		in.Partitions = []storage.Partition{p}
		g.Inputs = append(g.Inputs, in)
	}
	return g
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	answers := &assumed{}
	s := openS3(t, withRole(t, answers))
	g := granted(1, 2)
	c, err := s.Credentials(t.Context(), g)
	require.NoError(t, err)

	uploads := fmt.Sprintf("prod/.uploads/%s/%s/2/", g.Org, g.Task)
	require.Equal(t, storage.Credentials{
		AccessKeyID: "ASIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI", SessionToken: "AQoDYXdz",
		ExpiresAt: time.Date(2031, 1, 1, 0, 15, 0, 0, time.UTC),
		Region:    "eu-central-1", Bucket: "acme-bucket", ReadPrefixes: c.ReadPrefixes,
		WritePrefixes: []string{uploads + "0/", uploads + "2/"},
	}, c)

	require.ElementsMatch(t, []string{
		"prod/" + g.Inputs[0].Partitions[0].Files[0].Path, "prod/" + g.Inputs[1].Partitions[0].Files[0].Path,
		"prod/" + g.Inputs[1].Partitions[0].Files[1].Path,
	}, c.ReadPrefixes)
	require.Equal(t, c.WritePrefixes[1], s.UploadPrefix(storage.UploadKey{Org: g.Org, Task: g.Task, Attempt: 2,
		Output: 2}))

	asked := answers.asked[0]
	require.Contains(t, answers.signed[0], "AKIASERVER/")
	require.Contains(t, answers.signed[0], "/eu-central-1/sts/aws4_request")
	require.Contains(t, asked.Get("Policy"), `"Null":{"s3:if-none-match":"false"}`)

	asked.Del("Policy")
	require.Equal(t, url.Values{
		"Action": {"AssumeRole"}, "Version": {"2011-06-15"}, "RoleArn": {"arn:aws:iam::123456789012:role/dagctl-acme"},
		"ExternalId":      {"ext-acme"},
		"RoleSessionName": {fmt.Sprintf("dagctl-%s-2", g.Task)}, "DurationSeconds": {"900"},
	}, asked)
}

func TestCredentialsCoverThePinnedObjects(t *testing.T) {
	t.Parallel()
	answers := &assumed{}
	s := openS3(t, withRole(t, answers))
	g := granted(1, 1, 1)
	g.Inputs[0].Generation.Kind = storage.Postgres
	g.Inputs[1].Generation.Version = uuid.New() // names files of another generation
	c, err := s.Credentials(t.Context(), g)
	require.NoError(t, err)
	require.Equal(t, []string{"prod/" + g.Inputs[2].Partitions[0].Files[0].Path}, c.ReadPrefixes)

	g.Inputs, g.Outputs = nil, nil
	c, err = s.Credentials(t.Context(), g)
	require.NoError(t, err)
	require.Empty(t, c.ReadPrefixes)
	require.Empty(t, c.WritePrefixes)
	require.Contains(t, answers.asked[1].Get("Policy"), `"Deny"`)
}

func TestCredentialsThatDoNotFit(t *testing.T) {
	t.Parallel()
	answers := &assumed{fail: func(ask url.Values) (int, string) {
		if len(ask.Get("Policy")) > 1100 {
			return http.StatusBadRequest, "PackedPolicyTooLarge"
		}
		return 0, ""
	}}

	s := openS3(t, withRole(t, answers))
	g := granted(1, 20, 1, 1, 1, 1, 1, 1)
	c, err := s.Credentials(t.Context(), g)
	require.NoError(t, err)
	require.NotEmpty(t, c.ReadPrefixes)
	require.Less(t, len(c.ReadPrefixes), 7, "fewer, and the server reads the others for the task")
	require.Len(t, answers.asked, 2)
	require.LessOrEqual(t, len(answers.asked[0].Get("Policy")), 2048)

	answers.fail = func(url.Values) (int, string) { return http.StatusBadRequest, "PackedPolicyTooLarge" }
	_, err = s.Credentials(t.Context(), g)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)

	answers.fail = func(url.Values) (int, string) { return http.StatusForbidden, "AccessDenied" }
	_, err = s.Credentials(t.Context(), g)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "role/dagctl-acme")
	require.NotContains(t, err.Error(), "secret")
}

func TestNoCredentials(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		_, err := s.Credentials(t.Context(), granted(1))
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
		require.ErrorContains(t, err, "this server issues no credentials")
	})
}

// TestPolicyOfCredentials gives the policy of a task's session to a user of an S3 server with IAM, and tries what the
// user may do. That server does not know the condition on If-None-Match, so the policy is the one without it.
func TestPolicyOfCredentials(t *testing.T) {
	t.Parallel()
	srv := tests3.StartIAM(t)
	answers := &assumed{}
	c := withRole(t, answers)
	c.Bucket, c.Region, c.Endpoint, c.PathStyle, c.PlainPuts = srv.Bucket, srv.Region, srv.Endpoint, true, true
	c.AccessKeyID, c.SecretAccessKey = srv.AccessKeyID, srv.SecretAccessKey
	s := openS3(t, c)
	pinned, other := attempt(storage.Parquet, "pinned"), attempt(storage.Parquet, "other")
	m, err := s.Seal(t.Context(), pinned, []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	secret, err := s.Seal(t.Context(), other, []string{parquet(t, "SELECT 2 AS x")})
	require.NoError(t, err)
	g := granted()
	g.Inputs = []storage.GrantedInput{{Generation: pinned.Generation,
		Partitions: []storage.Partition{{Files: m.Files}}}}
	given, err := s.Credentials(t.Context(), g)
	require.NoError(t, err)

	policy := answers.asked[0].Get("Policy")
	require.True(t, json.Valid([]byte(policy)))
	id, key := srv.User(t, policy)
	task := srv.ClientAs(id, key, "")

	get := func(name string) error {
		out, err := task.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &srv.Bucket, Key: &name})
		if err == nil {
			_, err = io.Copy(io.Discard, out.Body)
		}
		return err
	}

	put := func(name string) error {
		_, err := task.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &srv.Bucket, Key: &name,
			Body: strings.NewReader("mine"), IfNoneMatch: aws.String("*")})
		return err
	}
	require.NoError(t, get(given.ReadPrefixes[0]))
	require.ErrorContains(t, get("prod/"+secret.Files[0].Path), "AccessDenied", "another dataset")
	require.NoError(t, put(given.WritePrefixes[0]+"x.parquet"))
	require.ErrorContains(t, put(given.WritePrefixes[0]+"x.parquet"), "PreconditionFailed", "once")
	require.ErrorContains(t, put(given.ReadPrefixes[0]), "AccessDenied", "what is committed")

	for name, prefix := range map[string]string{
		"another attempt": fmt.Sprintf("prod/.uploads/%s/%s/1/0/", g.Org, g.Task),
		"another task":    fmt.Sprintf("prod/.uploads/%s/%s/2/0/", g.Org, uuid.New()),
		"another org":     fmt.Sprintf("prod/.uploads/%s/%s/2/0/", uuid.New(), g.Task), "anywhere": "prod/",
	} {
		require.ErrorContains(t, put(prefix+"x.parquet"), "AccessDenied", name)
	}
	require.ErrorContains(t, get(given.WritePrefixes[0]+"x.parquet"), "AccessDenied", "what it has uploaded itself")

	_, err = task.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &srv.Bucket,
		Key: aws.String(given.WritePrefixes[0] + "x.parquet")})
	require.ErrorContains(t, err, "AccessDenied", "nothing is deleted")

	_, err = task.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &srv.Bucket,
		Prefix: aws.String("prod/.uploads/")})
	require.ErrorContains(t, err, "AccessDenied", "nothing is listed")

	up := storage.UploadKey{Org: g.Org, Task: g.Task, Attempt: g.Attempt}
	list, err := s.ListUploads(t.Context(), up)
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, err = s.FetchUploads(t.Context(), up, list, t.TempDir())
	require.NoError(t, err, "the server reads what the task has put there itself")
}
