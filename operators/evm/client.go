package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Call is one call of a method. Params are its parameters.
type Call struct {
	Method string
	Params []any
}

// Client sends calls to a node. A node that is away, busy or has an error of its own is asked again for a while; what
// the error of a call then says may pass, unless it is permanent. Errors name the host only: a URL may carry a key.
type Client struct {
	node    Node
	http    *http.Client
	url     *url.URL
	headers http.Header
	tries   int           // of one request
	patient time.Duration // the longest wait between two of them
	next    time.Time     // no request is sent before
	wait    func(text string)
}

// How often runs ask again, and enumerations, which hold up others of their org and come again soon.
const (
	runTries, runPatience   = 6, 10 * time.Minute
	listTries, listPatience = 3, 5 * time.Second
	firstWait               = 200 * time.Millisecond // doubled with each try, where the answer does not say how long
)

// NewClient returns a client for the run of a task.
func NewClient(t *operators.Task, n Node, over *http.Client) (*Client, error) {
	c, err := newClient(t, n, over)
	if err != nil {
		return nil, err
	}
	c.tries, c.patient = runTries, runPatience
	c.wait = func(text string) { t.Progress(0, text) }
	return c, nil
}

// NewListing returns a client for an enumeration.
func NewListing(e operators.Enumeration, n Node, over *http.Client) (*Client, error) {
	c, err := newClient(&operators.Task{Assignment: operators.Assignment{Secrets: e.Secrets}}, n, over)
	if err != nil {
		return nil, err
	}
	c.tries, c.patient, c.wait = listTries, listPatience, func(string) {}
	return c, nil
}

func newClient(t *operators.Task, n Node, over *http.Client) (*Client, error) {
	c := &Client{node: n, http: over, headers: http.Header{}}
	var err error
	if c.url, err = url.Parse(n.URL); err != nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	c.headers.Set("User-Agent", "dagctl")
	c.headers.Set("Content-Type", "application/json")
	for name, field := range n.Headers {
		text, err := t.SecretTo(c.url, field, "config.headers."+name)
		if err != nil {
			return nil, err
		}
		c.headers.Set(name, text)
	}
	return c, nil
}

// request and response are those of JSON-RPC 2.0.
type request struct {
	Version string `json:"jsonrpc"`
	ID      int    `json:"id"`
	Method  string `json:"method"`
	Params  []any  `json:"params"`
}

type response struct {
	ID     *int            `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// Do sends calls, as many in a request as the config says, and passes on each result in the order of the calls.
func (c *Client) Do(ctx context.Context, calls []Call, result func(i int, result json.RawMessage) error) error {
	for from := 0; from < len(calls); from += c.node.Batch {
		some := calls[from:min(from+c.node.Batch, len(calls))]
		var results []json.RawMessage
		err := c.again(ctx, func() (err error) {
			results, err = c.send(ctx, some)
			return err
		})
		if err != nil {
			return err
		}
		for i, r := range results {
			if err := result(from+i, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends calls in one request and returns their results.
func (c *Client) send(ctx context.Context, calls []Call) ([]json.RawMessage, error) {
	if err := c.turn(ctx); err != nil {
		return nil, err
	}
	requests := make([]request, len(calls))
	for i, call := range calls {
		requests[i] = request{"2.0", i, call.Method, call.Params}
	}
	var body any = requests
	if c.node.Batch == 1 {
		body = requests[0]
	}
	answer, err := c.post(ctx, body)
	if err != nil {
		return nil, err
	}

	var responses []response
	if bytes.HasPrefix(answer, []byte("[")) {
		err = json.Unmarshal(answer, &responses)
	} else { // a single call, or one error for all of a batch
		responses = make([]response, 1)
		err = json.Unmarshal(answer, &responses[0])
	}
	if err != nil {
		return nil, later{fault.New(fault.Unavailable, "%s does not answer JSON-RPC", c.url.Host), -1}
	}
	return c.inOrder(calls, responses)
}

// inOrder returns the results of calls. A batch may be answered in any order.
func (c *Client) inOrder(calls []Call, responses []response) ([]json.RawMessage, error) {
	results := make([]json.RawMessage, len(calls))
	for _, r := range responses {
		at := -1
		if r.ID != nil && *r.ID >= 0 && *r.ID < len(calls) {
			at = *r.ID
		}
		switch {
		case r.Error != nil:
			method := "the request"
			if at >= 0 {
				method = calls[at].Method
			}
			return nil, c.refused(method, r.Error.Code, r.Error.Message)
		case at >= 0 && len(r.Result) > 0:
			results[at] = r.Result
		}
	}

	for i, r := range results {
		if r == nil {
			return nil, later{fault.New(fault.Unavailable, "%s: the node left %s unanswered", c.url.Host,
				calls[i].Method), -1}
		}
	}
	return results, nil
}

// refused returns the error of a call that a node refuses. What the protocol calls a faulty request stays one; anything
// else (limits, a busy node, a block that another node behind the same address does not have yet) may pass.
func (c *Client) refused(method string, code int, message string) error {
	err := fault.New(fault.Unavailable, "%s: the node refuses %s: %s (%d)", c.url.Host, method,
		strings.Trim(shown(message), `"`), code)
	switch code {
	case -32700, -32600, -32601, -32602:
		return operators.Permanent(err.WithHint("does the node serve this method, and batches? `batch: 1` sends " +
			"calls one by one"))
	}
	return later{err, -1}
}

// post sends a body and returns that of the answer, without the space around it.
func (c *Client) post(ctx context.Context, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(text))
	if err != nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	request.Header = c.headers.Clone()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	defer response.Body.Close()

	if code := response.StatusCode; code < 200 || code > 299 {
		err := fault.New(fault.Unavailable, "%s: the node answered %s", c.url.Host, response.Status)
		switch {
		case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests,
			code >= 500:
			return nil, later{err, askedToWait(response)}
		}
		return nil, operators.Permanent(err)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, c.node.MaxBytes+1))
	switch {
	case err != nil:
		return nil, c.unanswered(ctx, err)
	case int64(len(answer)) > c.node.MaxBytes:
		return nil, operators.Permanent(fault.New(fault.TooLarge, "%s: an answer has more than %d bytes", c.url.Host,
			c.node.MaxBytes).WithHint("lower config.batch, or raise config.max_bytes"))
	}
	return bytes.TrimSpace(answer), nil
}

// unanswered returns the error of a request without a whole answer.
func (c *Client) unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	if fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Invalid) {
		return operators.Permanent(fmt.Errorf("%s: %w", c.url.Host, err))
	}
	return later{fault.New(fault.Unavailable, "%s: the node does not answer: %w", c.url.Host, err), -1}
}

// later is the error of a try after which another may succeed.
type later struct {
	error
	wait time.Duration // that the answer asks for; 0 or less: it does not say
}

func (l later) Unwrap() error { return l.error }

// askedToWait returns how long an answer asks to wait; negative if it does not say.
func askedToWait(r *http.Response) time.Duration {
	text := r.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 20); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return -1
	}
	return max(0, time.Until(at))
}

// again tries until it succeeds, fails for good, has tried often enough, or would have to wait for too long.
func (c *Client) again(ctx context.Context, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		var again later
		if !errors.As(err, &again) {
			return err
		}
		if try == c.tries {
			return fault.New(fault.Unavailable, "%w, %d times", again.error, try)
		}

		wait := again.wait
		if wait <= 0 {
			guess := firstWait << (try - 1)
			wait = guess/2 + rand.N(guess/2)
		}
		if end, bounded := ctx.Deadline(); wait > c.patient || bounded && time.Until(end) <= wait {
			return fault.New(fault.Unavailable, "%w, and is to be asked again in %s", again.error,
				wait.Round(time.Second)).WithHint("lower config.requests_per_second")
		}
		if wait >= time.Second {
			c.wait(fmt.Sprintf("%s, waiting for %s", again.error, wait.Round(time.Second)))
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// turn waits until a request may be sent.
func (c *Client) turn(ctx context.Context) error {
	if c.node.Rate == 0 {
		return ctx.Err()
	}
	now := time.Now()
	wait := max(0, c.next.Sub(now))
	c.next = now.Add(wait + time.Duration(float64(time.Second)/c.node.Rate))
	return sleep(ctx, wait)
}

// sleep waits, at most until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
