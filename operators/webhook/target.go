package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/webhook"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/patience"
)

// Target is where messages go, with what all requests have. Errors name its host only: a URL may carry a key.
type Target struct {
	url     *url.URL
	method  string
	headers http.Header
	key     string // to sign with; empty: nothing is signed

	pace patience.Pace

	mu     sync.Mutex
	inARow int   // deliveries in a row that no try made
	over   error // why no more requests are sent in this run
}

// NewTarget returns a target.
func NewTarget(t *operators.Task, to *url.URL, method string, s Sending) (*Target, error) {
	target := &Target{url: to, method: method, headers: http.Header{}}
	if err := operators.SetHeaders(target.headers, to, s.Headers, t.SecretTo); err != nil {
		return nil, err
	}
	target.headers.Set("User-Agent", "dagctl")
	target.headers.Set("Content-Type", "application/json")

	var err error
	target.key, err = t.SecretTo(to, s.Sign, "config.sign")
	return target, err
}

// SecretTarget returns the target of POST requests that a config names as {secret: NAME}: the secret is its URL, with
// the key to sign with, as in a notification. at is the place of the field, for errors.
func SecretTarget(t *operators.Task, field any, at string, headers map[string]any) (*Target, error) {
	_, value, _, err := t.SecretFor(field, at)
	if err != nil {
		return nil, err
	}
	named, _ := field.(map[string]any)
	name, _ := named["secret"].(string)
	to, key, err := webhook.Target(name, value.Reveal())
	if err != nil {
		return nil, operators.Permanent(err)
	}

	if _, err := value.For(to); err != nil {
		return nil, operators.Permanent(err)
	}
	target, err := NewTarget(t, to, http.MethodPost, Sending{Headers: headers})
	if err != nil {
		return nil, err
	}
	target.key = key
	return target, nil
}

// answer is what became of one request.
type answer struct {
	status operators.DeliveryStatus // Delivered, Refused or Waiting
	code   int                      // of HTTP; 0: none came
	why    string                   // it is not delivered
	wait   time.Duration            // that the receiver asks for; 0: it does not say
	fatal  error                    // no request of the run can succeed
}

// mostInARow is how many deliveries in a row may fail with all their tries before the target is left alone for the run.
const mostInARow = 5

// note notes how a delivery of this run ended.
func (t *Target) note(d operators.Delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Status == operators.Delivered || d.Status == operators.Refused {
		t.inARow = 0
		return
	}
	if t.inARow++; t.inARow == mostInARow && t.over == nil {
		t.over = fault.New(fault.Unavailable, "%d deliveries in a row did not succeed, the last because %s", mostInARow,
			d.Error)
	}
}

// stop ends the requests of the run to the target.
func (t *Target) stop(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = why
	}
}

// stopped returns why no more requests are sent to the target; nil: they are.
func (t *Target) stopped() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// maxAnswer is how much of an answer is read, so that its connection can be used again, in bytes.
const maxAnswer = 64 << 10

// send sends a message once.
func (t *Target) send(ctx context.Context, client *http.Client, timeout time.Duration, m Message) answer {
	requestCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(requestCtx, t.method, t.url.String(), bytes.NewReader(m.Body))
	if err != nil {
		return answer{status: operators.Refused, why: "the address is not a URL"}
	}
	request.GetBody = nil // otherwise requests with such a key are sent again unseen, where a connection breaks
	request.Header = t.headers.Clone()
	request.Header.Set("Idempotency-Key", m.id)
	if t.key != "" {
		stamp := strconv.FormatInt(clock.Now().Unix(), 10)
		request.Header.Set("webhook-id", m.id)
		request.Header.Set("webhook-timestamp", stamp)
		request.Header.Set("webhook-signature", webhook.Sign(t.key, m.id, stamp, m.Body))
	}

	response, err := client.Do(request)
	if err != nil {
		return t.unanswered(ctx, err, timeout)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // its status is what counts
	return t.answered(response)
}

// answered classifies an answer by its status.
func (t *Target) answered(response *http.Response) answer {
	code := response.StatusCode
	a := answer{status: operators.Refused, code: code, why: fmt.Sprintf("%s answered %s", t.url.Host,
		strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))))}
	switch {
	case code >= 200 && code < 300:
		return answer{status: operators.Delivered, code: code}
	case code >= 300 && code < 400:
		a.why += ", and redirects are not followed"
	case patience.Passes(code):
		a.status, a.wait = operators.Waiting, patience.AskedToWait(response, time.Now())
	}
	return a
}

// unanswered classifies a request without an answer. It may have arrived all the same.
func (t *Target) unanswered(ctx context.Context, err error, timeout time.Duration) answer {
	a := answer{status: operators.Waiting}
	var named *url.Error // contains the URL
	if errors.As(err, &named) {
		err = named.Err
	}

	switch {
	case ctx.Err() != nil:
		a.fatal, a.why = context.Cause(ctx), "the run ended before the answer came"
	case fault.Is(err, fault.Forbidden):
		a.fatal, a.why = operators.Permanent(err), err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		a.why = fmt.Sprintf("%s did not answer within %s", t.url.Host, timeout)
	default:
		a.why = fmt.Sprintf("%s %s: %s", t.method, t.url.Host, err)
	}
	return a
}
