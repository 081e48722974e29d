// Package webhook has what senders and receivers of webhooks share.
//
// Vocabulary: a signature is that of the Standard Webhooks specification. It owns no tables.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
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

// Target reads the text of a secret as the URL to send to and the key to sign with. The key is the fragment behind #,
// which is never sent, or else the whole text, which only the receiver knows as well. name is the secret's, for errors.
func Target(name, text string) (to *url.URL, key string, err error) {
	to, err = url.Parse(text)
	if err != nil || to.Host == "" || to.Scheme != "https" && to.Scheme != "http" {
		return nil, "", fault.New(fault.Invalid, "secret %s is not a URL to send to", name).
			WithHint("set it to https://HOST/PATH, or https://HOST/PATH#KEY to sign with a key of its own")
	}
	key = text
	if to.Fragment != "" {
		key, to.Fragment, to.RawFragment = to.Fragment, "", ""
	}
	return to, key, nil
}
