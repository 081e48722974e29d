package sources

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/webhook"
)

func TestSeveralSignaturesAndEncodedKeys(t *testing.T) {
	t.Parallel()
	// This is the example of the Standard Webhooks specification's reference libraries.
	const (
		key   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		id    = "msg_p5jXN8AQM9LWM0D4loKWxJek"
		stamp = "1614265330"
		body  = `{"test": 2432232314}`
	)
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", webhook.Sign(key, id, stamp, []byte(body)))
	at := time.Unix(1614265330, 0)
	raw, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	in := Delivery{ID: id, Timestamp: stamp, Body: []byte(body),
		Signature: "v1,AAAA v1a,xyz " + webhook.Sign(string(raw), id, stamp, []byte(body))}
	require.Empty(t, CheckSignature(key, in, at))
	require.NotEmpty(t, CheckSignature(key+"x", in, at))
}
