package backends

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testaws"
)

func TestInspectingQueues(t *testing.T) {
	t.Parallel()
	q := testaws.SQS(t)
	good, dead := q.NewWithDLQ(t, 5, nil)
	hasty, _ := q.NewWithDLQ(t, 1, map[string]string{"VisibilityTimeout": "5", "DelaySeconds": "3"})
	endless, stray := q.New(t, nil), q.New(t, nil)

	for name, tc := range map[string]struct {
		backend Backend
		ok      bool
		want    []string // texts of the findings, in order
	}{
		"as it should be": {Backend{QueueURL: good}, true, []string{"visibility 30 s"}},
		"with its DLQ":    {Backend{QueueURL: good, DLQURL: dead}, true, []string{"visibility 30 s"}},
		"another DLQ": {Backend{QueueURL: good, DLQURL: stray}, false,
			[]string{"its dead messages go to arn:"}},
		"no DLQ of that name": {Backend{QueueURL: good, DLQURL: dead + "x"}, false, []string{"x: there is none"}},
		"hasty": {Backend{QueueURL: hasty}, false, []string{"comes back after 5 s",
			"delays each task by 3 s", "dead after 1 receives"}},
		"without DLQ": {Backend{QueueURL: endless}, false, []string{"no redrive policy"}},
		"not there":   {Backend{QueueURL: good + "x"}, false, []string{"there is none"}},
		"nobody answers there": {Backend{QueueURL: good, Endpoint: "http://127.0.0.1:1"}, false,
			[]string{"127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.backend.Kind = SQS
			if tc.backend.Endpoint == "" {
				tc.backend.Endpoint = q.Endpoint
			}

			runtimes := RuntimeMap{"ecs": {tc.backend}, "here": {{Kind: InProcess}}}
			found := runtimes.Inspect(t.Context(), testaws.Config(t))
			require.Len(t, found, len(tc.want), "%v", found)
			for i, want := range tc.want {
				require.Equal(t, "ecs", found[i].Runtime)
				require.Contains(t, found[i].Detail, want)
				require.Equal(t, tc.ok, found[i].OK)
				require.Equal(t, tc.ok, found[i].Hint == "", "a finding of something wrong says what to do")
			}
		})
	}
}

func TestInspectingAQueueCountsDeadMessages(t *testing.T) {
	t.Parallel()
	q := testaws.SQS(t)
	queue, dead := q.NewWithDLQ(t, 5, nil)
	body := "no task at all"
	_, err := q.Client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &dead, MessageBody: &body})
	require.NoError(t, err)
	runtimes := RuntimeMap{"ecs": {{Kind: SQS, QueueURL: queue, Endpoint: q.Endpoint}}}
	found := runtimes.Inspect(t.Context(), testaws.Config(t))
	require.Len(t, found, 1)
	require.True(t, found[0].OK)
	require.Contains(t, found[0].Detail, "about 1 messages")
}

// The test's endpoint supports neither dry runs nor settings: a proxy in front of it answers those as AWS documents
// them.
func TestInspectingFunctions(t *testing.T) {
	t.Parallel()
	endpoint := testaws.Lambda(t, map[string]testaws.Function{"f": {Code: `export const handler = async () => {}`}})
	for name, tc := range map[string]struct {
		dryRun, settings *http.Response
		ok               bool
		want             string
	}{
		"as it should be": {testaws.Answer(204, ""), testaws.Answer(200, `{"MaximumRetryAttempts": 0}`), true,
			"may be invoked"},
		"never set": {testaws.Answer(204, ""), testaws.Refusal(404, "ResourceNotFoundException", "no config"),
			false, "invokes it again"},
		"set to retry": {testaws.Answer(204, ""), testaws.Answer(200, `{"MaximumRetryAttempts": 2}`), false,
			"invokes it again"},
		"not there": {testaws.Refusal(404, "ResourceNotFoundException", "no function"), nil, false,
			"there is none"},
		"not for us": {testaws.Refusal(403, "AccessDeniedException", "no"), nil, false, "may not look at it"},
		"settings hidden": {testaws.Answer(204, ""), testaws.Refusal(403, "AccessDeniedException", "no"), false,
			"may not look at it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := testaws.Front(t, endpoint, func(r *http.Request, body []byte) ([]byte, *http.Response) {
				if strings.HasSuffix(r.URL.Path, "event-invoke-config") {
					return nil, tc.settings
				}
				require.Equal(t, "DryRun", r.Header.Get("X-Amz-Invocation-Type"))
				return nil, tc.dryRun
			})

			f := Backend{Kind: Lambda, Function: "f", Qualifier: "live", Endpoint: front, Concurrency: 3}
			found := RuntimeMap{"lambda": {f}}.Inspect(t.Context(), testaws.Config(t))
			require.Len(t, found, 1)
			require.Contains(t, found[0].Detail, tc.want)
			require.Equal(t, tc.ok, found[0].OK)
			require.Equal(t, tc.ok, found[0].Hint == "")
		})
	}
}
