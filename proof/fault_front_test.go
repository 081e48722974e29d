package proof_test

import (
	"bytes"
	"crypto/md5" //nolint:gosec // as SQS does
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
)

// front is a proxy for an endpoint of AWS's that garbles calls and answers.
type front struct {
	*httptest.Server
	target  string
	client  *http.Client
	garbled atomic.Uint64 // of 10,000 calls, for each kind of garbling

	sent, received, deleted            atomic.Int64 // messages, as the callers see it
	lost, doubled, late, mixed         atomic.Int64 // of these; late: also calls
	calls, refused, throttled, unheard atomic.Int64 // calls

	mu   sync.Mutex
	held []map[string]any // received messages that are kept for a later answer
}

func startFront(t *testing.T, target string, garble func(*call)) *front {
	f := &front{target: target, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		garble(&call{f, w, r, body})
	}))
	t.Cleanup(func() { f.Close(); f.client.CloseIdleConnections() })
	return f
}

func (f *front) misbehave(share float64) { f.garbled.Store(uint64(share * 10_000)) }

func (f *front) chance(counted *atomic.Int64) bool {
	if chance(&f.garbled) {
		counted.Add(1)
		return true
	}
	return false
}

// call is one call under way.
type call struct {
	*front
	w    http.ResponseWriter
	r    *http.Request
	body []byte
}

// pass makes the call. If there is no answer, the caller gets none either.
func (c *call) pass(body []byte) (status int, text []byte, ok bool) {
	request, err := http.NewRequestWithContext(c.r.Context(), c.r.Method, c.target+c.r.URL.RequestURI(),
		bytes.NewReader(body))
	if err != nil {
		return 0, nil, false
	}
	request.Header = maps.Clone(c.r.Header)
	request.Header.Del("Accept-Encoding")
	answer, err := c.client.Do(request)
	if err != nil {
		return 0, nil, false
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	return answer.StatusCode, text, err == nil
}

// passed forwards the call and its answer.
func (c *call) passed() {
	status, text, ok := c.pass(c.body)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c.answer(status, text)
}

func (c *call) answer(status int, text []byte) {
	c.w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(text) // the caller may be gone
}

func (c *call) say(status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	c.answer(status, text)
}

// refuse answers with an error as AWS's services do.
func (c *call) refuse(status int, code string) {
	c.w.Header().Set("X-Amzn-Errortype", code)
	c.say(status, map[string]string{"__type": code, "message": "as the test will have it"})
}

// garbleQueue loses, repeats, delays and mixes up messages, on their way to the queue and from it, and answers that
// all is well. It also loses deletions, and answers of calls that were made.
func garbleQueue(c *call) {
	switch c.r.Header.Get("X-Amz-Target") {
	case "AmazonSQS.SendMessageBatch":
		c.send()
	case "AmazonSQS.ReceiveMessage":
		c.receive()
	case "AmazonSQS.DeleteMessageBatch":
		c.delete()
	default:
		c.passed()
	}
}

// entries returns the messages of a call for several messages.
type entries struct {
	QueueURL string           `json:"QueueUrl"`
	Entries  []map[string]any `json:"Entries"`
}

type queueAnswer struct {
	Successful []map[string]any `json:"Successful"`
	Failed     []map[string]any `json:"Failed,omitempty"`
}

func (c *call) send() {
	var sent entries
	if err := json.Unmarshal(c.body, &sent); err != nil {
		panic(err)
	}
	answer := queueAnswer{}
	var once, twice []map[string]any
	for _, e := range sent.Entries {
		switch c.sent.Add(1); {
		case c.chance(&c.lost):
			sum := md5.Sum([]byte(e["MessageBody"].(string))) //nolint:gosec // as SQS does
			answer.Successful = append(answer.Successful, map[string]any{"Id": e["Id"], "MessageId": uuid.NewString(),
				"MD5OfMessageBody": hex.EncodeToString(sum[:])})
			continue
		case c.chance(&c.doubled):
			twice = append(twice, e)
		case c.chance(&c.late):
			e["DelaySeconds"] = 1 + rand.IntN(3)
		}
		once = append(once, e)
	}

	c.mix(once)
	if len(twice) > 0 && !c.passEntries(entries{sent.QueueURL, twice}, &queueAnswer{}) ||
		len(once) > 0 && !c.passEntries(entries{sent.QueueURL, once}, &answer) {
		return
	}
	if c.chance(&c.unheard) {
		c.refuse(http.StatusInternalServerError, "InternalFailure")
		return
	}
	c.say(http.StatusOK, answer)
}

// passEntries forwards the rest of a call and completes the answer. If the queue refuses the call, so does passEntries.
func (c *call) passEntries(left entries, answer *queueAnswer) bool {
	body, err := json.Marshal(left)
	if err != nil {
		panic(err)
	}
	status, text, ok := c.pass(body)
	if !ok {
		panic(http.ErrAbortHandler)
	}

	if status != http.StatusOK {
		c.answer(status, text)
		return false
	}
	var said queueAnswer
	if err := json.Unmarshal(text, &said); err != nil {
		panic(err)
	}

	answer.Successful, answer.Failed = append(answer.Successful, said.Successful...),
		append(answer.Failed, said.Failed...)
	return true
}

func (c *call) delete() {
	var asked entries
	if err := json.Unmarshal(c.body, &asked); err != nil {
		panic(err)
	}
	answer := queueAnswer{Successful: []map[string]any{}}
	var kept []map[string]any
	for _, e := range asked.Entries {
		if c.deleted.Add(1); c.chance(&c.lost) {
			answer.Successful = append(answer.Successful, map[string]any{"Id": e["Id"]})
			continue
		}
		kept = append(kept, e)
	}

	if len(kept) > 0 && !c.passEntries(entries{asked.QueueURL, kept}, &answer) {
		return
	}
	c.say(http.StatusOK, answer)
}

func (c *call) receive() {
	status, text, ok := c.pass(c.body)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	var answer struct {
		Messages []map[string]any `json:"Messages"`
	}

	if status != http.StatusOK || json.Unmarshal(text, &answer) != nil {
		c.answer(status, text)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	said := c.held
	c.held = nil
	for _, m := range answer.Messages {
		switch c.received.Add(1); {
		case c.chance(&c.lost):
			continue // it stays hidden as long as the caller asked
		case c.chance(&c.doubled):
			said = append(said, m)
		case c.chance(&c.late):
			c.held = append(c.held, m)
			continue
		}
		said = append(said, m)
	}

	c.mix(said)
	c.say(http.StatusOK, map[string]any{"Messages": said})
}

func (c *call) mix(messages []map[string]any) {
	if len(messages) > 1 && c.chance(&c.mixed) {
		rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	}
}

// garbleFunction refuses invocations, throttles them, runs them but answers with an error, or never answers.
func garbleFunction(c *call) {
	switch c.calls.Add(1); {
	case c.chance(&c.refused):
		c.refuse(http.StatusInternalServerError, "ServiceException")
	case c.chance(&c.throttled):
		c.refuse(http.StatusTooManyRequests, "TooManyRequestsException")
	case c.chance(&c.unheard):
		_, _, _ = c.pass(c.body)
		c.refuse(http.StatusInternalServerError, "ServiceException")
	case c.chance(&c.late):
		if rand.IntN(2) == 0 {
			_, _, _ = c.pass(c.body)
		}
		<-c.r.Context().Done() // until the caller gives up
	default:
		c.passed()
	}
}
