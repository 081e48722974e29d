package testaws_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testaws"
)

func TestAQueueGivesWhatItWasSentAndThenItsDLQ(t *testing.T) {
	t.Parallel()
	q := testaws.SQS(t)
	queue, dlq := q.NewWithDLQ(t, 1, map[string]string{"VisibilityTimeout": "0"})
	_, err := q.Client.SendMessage(t.Context(),
		&sqs.SendMessageInput{QueueUrl: &queue, MessageBody: aws.String("hello")})
	require.NoError(t, err)
	got := q.Receive(t, queue, 1)
	require.Len(t, got, 1)
	require.Equal(t, "hello", *got[0].Body)
	require.Empty(t, q.Receive(t, queue, 0))
	dead := q.Receive(t, dlq, 1)
	require.Len(t, dead, 1)
	q.Delete(t, dlq, dead...)
}

func TestAFunctionIsInvoked(t *testing.T) {
	t.Parallel()
	endpoint := testaws.Lambda(t, map[string]testaws.Function{
		"double": {Code: `export const handler = async (e) => ({ n: e.n * 2 })`},
		"triple": {Code: "import os\ndef handler(e, context):\n    return {'n': e['n'] * int(os.environ['BY'])}\n",
			Python: true, Environment: map[string]string{"BY": "3"}},
		"failing": {Code: `export const handler = async () => { throw new Error("no") }`},
	})

	client := lambda.NewFromConfig(testaws.Config(t), func(o *lambda.Options) { o.BaseEndpoint = &endpoint })
	for range 2 { // a failing invocation does not stop the server
		got, err := client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: aws.String("failing"),
			InvocationType: types.InvocationTypeEvent, Payload: []byte(`{}`)})
		require.NoError(t, err)
		require.EqualValues(t, 202, got.StatusCode)
		got, err = client.Invoke(t.Context(),
			&lambda.InvokeInput{FunctionName: aws.String("double"), Payload: []byte(`{"n": 21}`)})
		require.NoError(t, err)
		require.JSONEq(t, `{"n": 42}`, string(got.Payload))
	}
	got, err := client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: aws.String("triple"),
		Payload: []byte(`{"n": 21}`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"n": 63}`, string(got.Payload))
	_, err = client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: aws.String("nobody"), Payload: []byte(`{}`)})
	var missing *types.ResourceNotFoundException
	require.ErrorAs(t, err, &missing)
}
