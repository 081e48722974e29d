// Package webhook has what senders and receivers of webhooks share.
//
// Vocabulary: a signature is that of the Standard Webhooks specification. It owns no tables.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// Sign returns the signature of a message, as defined by the Standard Webhooks specification: HMAC-SHA256 over id,
// timestamp and body. A key of the form whsec_BASE64 stands for the bytes it encodes.
func Sign(key, id, timestamp string, body []byte) string {
	raw := []byte(key)
	if encoded, ok := strings.CutPrefix(key, "whsec_"); ok {
		if decoded, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			raw = decoded
		}
	}
	mac := hmac.New(sha256.New, raw)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
