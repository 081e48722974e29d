package notices_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/operators"
)

// What the services say of the bodies that they take: https://docs.slack.dev/reference/block-kit/blocks,
// https://adaptivecards.io/explorer and https://developer.pagerduty.com/docs/send-alert-event.
const (
	slackSchema = `{"type": "object", "required": ["text", "blocks"], "additionalProperties": false, "properties": {
	  "text": {"type": "string", "minLength": 1},
	  "blocks": {"type": "array", "minItems": 1, "maxItems": 50, "items": {"oneOf": [
	    {"required": ["type", "text"], "additionalProperties": false, "properties": {"type": {"const": "header"},
	      "text": {"required": ["type", "text"], "properties": {"type": {"const": "plain_text"},
	        "text": {"type": "string", "minLength": 1, "maxLength": 150}, "emoji": {"type": "boolean"}}}}},
	    {"required": ["type"], "additionalProperties": false, "properties": {"type": {"const": "section"},
	      "text": {"$ref": "#/$defs/text"},
	      "fields": {"type": "array", "minItems": 1, "maxItems": 10, "items": {"$ref": "#/$defs/text"}}}}]}}},
	  "$defs": {"text": {"required": ["type", "text"], "additionalProperties": false, "properties": {"type": {"const": "mrkdwn"},
	    "text": {"type": "string", "minLength": 1, "maxLength": 3000}}}}}`
	teamsSchema = `{"type": "object", "required": ["type", "attachments"], "properties": {"type": {"const": "message"},
	  "attachments": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"required": ["contentType", "content"],
	    "properties": {"contentType": {"const": "application/vnd.microsoft.card.adaptive"},
	      "content": {"required": ["type", "version", "body"], "properties": {"type": {"const": "AdaptiveCard"},
	        "version": {"enum": ["1.2", "1.3", "1.4"]},
	        "body": {"type": "array", "minItems": 1, "items": {"oneOf": [
	          {"required": ["type", "inlines"], "additionalProperties": false, "properties": {"type": {"const": "RichTextBlock"},
	            "inlines": {"type": "array", "minItems": 1, "items": {"required": ["type", "text"], "additionalProperties": false,
	              "properties": {"type": {"const": "TextRun"}, "text": {"type": "string"}, "size": {"enum": ["Large"]},
	                "weight": {"enum": ["Bolder"]}, "color": {"enum": ["Attention", "Good", "Accent"]},
	                "fontType": {"enum": ["Monospace"]}}}}}},
	          {"required": ["type", "facts"], "additionalProperties": false, "properties": {"type": {"const": "FactSet"},
	            "facts": {"type": "array", "minItems": 1, "items": {"required": ["title", "value"], "properties": {
	              "title": {"type": "string"}, "value": {"type": "string"}}}}}}]}},
	        "actions": {"type": "array", "items": {"required": ["type", "title", "url"], "properties": {
	          "type": {"const": "Action.OpenUrl"}, "url": {"type": "string", "format": "uri"}}}}}}}}}}}`
	pagerDutySchema = `{"type": "object", "required": ["routing_key", "event_action"], "additionalProperties": false,
	  "properties": {"routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
	    "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
	    "dedup_key": {"type": "string", "maxLength": 255}, "client": {"type": "string"}, "client_url": {"type": "string"},
	    "links": {"type": "array", "items": {"required": ["href"], "properties": {"href": {"type": "string"}}}},
	    "payload": {"required": ["summary", "source", "severity"], "properties": {
	      "summary": {"type": "string", "minLength": 1, "maxLength": 1024}, "source": {"type": "string", "minLength": 1},
	      "severity": {"enum": ["critical", "warning", "error", "info"]}, "timestamp": {"type": "string", "format": "date-time"},
	      "component": {"type": "string"}, "group": {"type": "string"}, "class": {"type": "string"},
	      "custom_details": {"type": "object"}}}},
	  "if": {"properties": {"event_action": {"const": "trigger"}}}, "then": {"required": ["payload"]},
	  "else": {"required": ["dedup_key"]}}`
)

const routingKey = "0123456789abcdef0123456789abcdef"

// taker takes bodies that its schema allows, as Slack, Teams and PagerDuty do, and refuses others.
type taker struct {
	*httptest.Server
	mu  sync.Mutex
	got []map[string]any
}

func newTaker(t *testing.T, schema string) *taker {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("body.json", document))
	checks, err := compiler.Compile("body.json")
	require.NoError(t, err)

	s := &taker{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		body, err := jsonschema.UnmarshalJSON(in.Body)
		if err == nil {
			err = checks.Validate(body)
		}
		if err != nil || in.Header.Get("Content-Type") != "application/json" {
			http.Error(out, fmt.Sprint("invalid_payload ", err), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got = append(s.got, body.(map[string]any))
		out.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *taker) bodies() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any(nil), s.got...)
}

// mailbox is a mail server that keeps what it accepts.
type mailbox struct {
	login bool   // the method LOGIN, and no other
	other string // no method but this
	mu    sync.Mutex
	mails []string
	to    []string
}

func (b *mailbox) NewSession(c *smtp.Conn) (smtp.Session, error) {
	return &mailSession{b, c, false}, nil
}

func (b *mailbox) received() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.mails...)
}

type mailSession struct {
	box  *mailbox
	conn *smtp.Conn
	in   bool
}

func (s *mailSession) AuthMechanisms() []string {
	if s.box.other != "" {
		return []string{s.box.other}
	}
	if s.box.login {
		return []string{sasl.Login}
	}
	return []string{sasl.Plain}
}

func (s *mailSession) Auth(string) (sasl.Server, error) {
	if s.box.login {
		return &loginServer{enter: s.enter}, nil
	}
	return sasl.NewPlainServer(func(_, user, password string) error { return s.enter(user, password) }), nil
}

func (s *mailSession) enter(user, password string) error {
	_, encrypted := s.conn.TLSConnectionState()
	if !encrypted || user != "dagctl@example.com" || password != "hush" {
		return errors.New("wrong password")
	}
	s.in = true
	return nil
}

// loginServer asks as Exchange does: https://learn.microsoft.com/openspecs/exchange_server_protocols/ms-xlogin.
type loginServer struct {
	enter func(user, password string) error
	user  string
	asked int
}

func (l *loginServer) Next(said []byte) (challenge []byte, done bool, err error) {
	l.asked++
	switch l.asked {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.user = string(said)
		return []byte("Password:"), false, nil
	}
	return nil, true, l.enter(l.user, string(said))
}

func (s *mailSession) Mail(string, *smtp.MailOptions) error {
	if !s.in {
		return smtp.ErrAuthRequired
	}
	return nil
}

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	s.box.to = append(s.box.to, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	s.box.mails = append(s.box.mails, string(text))
	return err
}

func (s *mailSession) Reset()        {}
func (s *mailSession) Logout() error { return nil }

// newMailbox starts a mail server that encrypts at once, or by STARTTLS. trust is what its clients have to trust.
func newMailbox(t *testing.T, atOnce bool) (box *mailbox, address string, trust *tls.Config) {
	t.Helper()
	certificate := httptest.NewTLSServer(nil)
	certificate.Close()
	pool := x509.NewCertPool()
	pool.AddCert(certificate.Certificate())

	box = &mailbox{}
	server := smtp.NewServer(box)
	server.TLSConfig = &tls.Config{Certificates: certificate.TLS.Certificates}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address = listener.Addr().String()
	if atOnce {
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return box, address, &tls.Config{RootCAs: pool}
}

// localTrusting is local, with links, for servers with certificates of the test.
func localTrusting(w *dispatchertest.World, trust *tls.Config) *service.Service {
	w.T.Helper()
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(w.T, err)
	return w.Dispatcher("local", func(c *service.Config) {
		c.NoticeDialer, c.NoticeTimeout, c.NoticeTLS = dialer, 5*time.Second, trust
		c.PagesURL = "https://dagctl.example.com"
	})
}

const toldDAG = `name: shop
jobs:
  - name: orders
    operator: hook
    source: { kind: manual }
    max_attempts: 1
    outputs: 0
notify:
`

// dieTimes makes tasks of orders fail for good.
func dieTimes(w *dispatchertest.World, n int) {
	w.T.Helper()
	w.Probe.On("orders", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New(`python3: exit status 3; output "orders"`)
	})
	_, err := w.D.Enqueue(w.T.Context(), w.Caller, "shop", "orders", make([]dispatcher.EnqueueItem, n))
	require.NoError(w.T, err)
	w.Settle()
}

// Every kind of receiver takes a message of many dead tasks, as one, and hears once that they are no more.
func TestManyDeadTasksAreOneMessageToEachReceiver(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	slack, teams, pager := newTaker(t, slackSchema), newTaker(t, teamsSchema), newTaker(t, pagerDutySchema)
	box, address, trust := newMailbox(t, false)
	for name, value := range map[string]string{"SLACK": slack.URL + "/services/hush", "TEAMS": teams.URL + "/hush",
		"PAGER": pager.URL + "/v2/enqueue#" + routingKey, "MAIL": "smtp://dagctl%40example.com:hush@" + address} {
		w.Secret(name, value, authz.Binding{AddJobs: []string{"shop"},
			AddHosts: []string{slack.URL, teams.URL, pager.URL, address}})
	}
	w.Serve(toldDAG + `  - { on: [dead], slack: { secret: SLACK } }
  - { on: [dead], teams: { secret: TEAMS } }
  - { on: [dead], pagerduty: { secret: PAGER } }
  - { on: [dead], email: { secret: MAIL, to: [ops@example.com, Zoë@example.com] } }
`)
	d := localTrusting(w, trust)
	dieTimes(w, 3)
	sendNotices(w, d, time.Now())
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`), "all were taken")

	require.Len(t, slack.bodies(), 1)
	require.Len(t, teams.bodies(), 1)
	require.Len(t, pager.bodies(), 1)
	require.Len(t, box.received(), 1)
	for _, said := range []string{fmt.Sprint(slack.bodies()), fmt.Sprint(teams.bodies()), fmt.Sprint(pager.bodies())} {
		require.Contains(t, said, "3 tasks of shop/orders are out of attempts")
		require.Contains(t, said, `python3: exit status 3; output "orders"`, "the words of the error")
		require.Contains(t, said, "https://dagctl.example.com/dead?dag=shop")
	}
	letter, err := mail.ReadMessage(strings.NewReader(box.received()[0]))
	require.NoError(t, err)
	require.Equal(t, "[dagctl] 3 tasks of shop/orders are out of attempts", letter.Header.Get("Subject"))
	require.Contains(t, box.received()[0], "python3: exit status 3")

	// What dies soon after is told later, together.
	dieTimes(w, 1)
	dieTimes(w, 1)
	sendNotices(w, d, time.Now())
	require.Len(t, slack.bodies(), 1, "not again so soon")
	require.Equal(t, 4, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`), "one for each receiver")
	sendNotices(w, d, time.Now().Add(6*time.Minute))
	require.Len(t, slack.bodies(), 2)
	require.Contains(t, fmt.Sprint(slack.bodies()[1]), "2 tasks of shop/orders")

	_, err = d.Notices.AnnounceOver(t.Context(), time.Now())
	require.NoError(t, err)
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`), "it is not over")
	w.Exec(`DELETE FROM waiting WHERE reason = 'dead'`)
	for range 2 {
		_, err = d.Notices.AnnounceOver(t.Context(), time.Now())
		require.NoError(t, err)
		sendNotices(w, d, time.Now())
	}
	require.Len(t, slack.bodies(), 3)
	require.Contains(t, fmt.Sprint(slack.bodies()[2]), "no task of shop/orders is out of attempts any more")
	events := pager.bodies()
	require.Len(t, events, 3)
	require.Equal(t, []any{"trigger", "trigger", "resolve"},
		[]any{events[0]["event_action"], events[1]["event_action"], events[2]["event_action"]})
	require.Equal(t, events[0]["dedup_key"], events[2]["dedup_key"])
	require.Len(t, box.received(), 3)
}

// The error of a task that may have read what not everybody may is not told.
func TestErrorsOfRestrictedJobsAreNotTold(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	slack := newTaker(t, slackSchema)
	w.Secret("SLACK", slack.URL, authz.Binding{AddJobs: []string{"shop"}, AddHosts: []string{slack.URL}})
	w.Serve(`name: shop
jobs:
  - name: orders
    operator: hook
    source: { kind: manual }
    max_attempts: 1
publish: { orders: { from: { job: orders } } }
notify: [{ on: [dead], slack: { secret: SLACK } }]
`)
	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'orders'`)
	dieTimes(w, 1)
	sendNotices(w, localTrusting(w, nil), time.Now())
	require.Len(t, slack.bodies(), 1)
	require.NotContains(t, fmt.Sprint(slack.bodies()), "exit status")
	require.Contains(t, fmt.Sprint(slack.bodies()), "https://dagctl.example.com/tasks/")
}

// A receiver that hangs holds up no other, and is tried again after growing waits.
func TestAReceiverThatHangsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	slack := newTaker(t, slackSchema)
	asked := make(chan struct{}, 10)
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
		_, _ = io.Copy(io.Discard, in.Body) // a server sees that its client is gone once it has read the body
		asked <- struct{}{}
		<-in.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	w.Secret("SLACK", slack.URL, authz.Binding{AddJobs: []string{"shop"}, AddHosts: []string{slack.URL}})
	w.Secret("HANGS", hanging.URL, authz.Binding{AddJobs: []string{"shop"}, AddHosts: []string{hanging.URL}})
	w.Serve(toldDAG + `  - { on: [dead], teams: { secret: HANGS } }
  - { on: [dead], slack: { secret: SLACK } }
`)
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	d := w.Dispatcher("local", func(c *service.Config) { c.NoticeDialer, c.NoticeTimeout = dialer, 50*time.Second })
	dieTimes(w, 1)
	w.Exec(`UPDATE outbox SET available_at = now() WHERE kind = 'notify'`)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.Notices.Run(ctx) }()
	<-asked
	w.Eventually("the other one is told", func() bool { return len(slack.bodies()) == 1 })

	dieTimes(w, 1)
	w.Exec(`DELETE FROM told_notices`) // so that the next one is told at once
	w.Exec(`UPDATE outbox SET available_at = now() WHERE kind = 'notify' AND attempts = 0
		AND payload ->> 'secret' = 'SLACK'`)
	w.Eventually("the other one is told again", func() bool { return len(slack.bodies()) == 2 })
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// Exchange and its relays offer LOGIN alone.
func TestMailServersWithLogin(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	box, address, trust := newMailbox(t, false)
	box.login = true
	for name, password := range map[string]string{"MAIL": "hush", "WRONG": "guess"} {
		w.Secret(name, "smtp://dagctl%40example.com:"+password+"@"+address,
			authz.Binding{AddJobs: []string{"shop"}, AddHosts: []string{address}})
	}
	w.Serve(toldDAG + `  - { on: [dead], email: { secret: MAIL, to: [ops@example.com] } }
  - { on: [dead], email: { secret: WRONG, to: [ops@example.com] } }
`)
	answers, err := localTrusting(w, trust).Notices.Try(t.Context(), w.Caller.OrgID, "shop")
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.True(t, answers[0].Arrived, answers[0].Said)
	require.Len(t, box.received(), 1)
	require.False(t, answers[1].Arrived)
	require.Contains(t, answers[1].Said, "log in")
	require.NotContains(t, answers[1].Said, "guess")
}

// A password goes to no server by a method that it does not offer.
func TestMailServersWithOtherLogins(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	box, address, trust := newMailbox(t, false)
	box.other = "XOAUTH2"
	w.Secret("MAIL", "smtp://dagctl%40example.com:hush@"+address,
		authz.Binding{AddJobs: []string{"shop"}, AddHosts: []string{address}})
	w.Serve(toldDAG + "  - { on: [dead], email: { secret: MAIL, to: [ops@example.com] } }\n")
	answers, err := localTrusting(w, trust).Notices.Try(t.Context(), w.Caller.OrgID, "shop")
	require.NoError(t, err)
	require.False(t, answers[0].Arrived)
	require.Contains(t, answers[0].Said, "XOAUTH2 only, and not by PLAIN or LOGIN")
}

func TestTryingReceivers(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	pager := newTaker(t, pagerDutySchema)
	refusing := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		http.Error(out, "no_service at "+in.URL.Path, http.StatusGone)
	}))
	t.Cleanup(refusing.Close)
	box, address, trust := newMailbox(t, true)
	hosts := []string{pager.URL, refusing.URL, address}
	for name, value := range map[string]string{"PAGER": pager.URL + "/v2/enqueue#" + routingKey,
		"SLACK": refusing.URL + "/hush", "MAIL": "smtps://dagctl%40example.com:hush@" + address,
		"WRONG": "smtps://dagctl%40example.com:guess@" + address} {
		w.Secret(name, value, authz.Binding{AddJobs: []string{"shop"}, AddHosts: hosts})
	}
	w.Secret("UNBOUND", "https://hooks.example.com/hush", authz.Binding{AddJobs: []string{"shop"}})
	w.Serve(toldDAG + `  - { on: [dead], pagerduty: { secret: PAGER } }
  - { on: [dead, late], slack: { secret: SLACK } }
  - { on: [late], slack: { secret: SLACK } }
  - { on: [late], teams: { secret: UNBOUND } }
  - { on: [dead], email: { secret: MAIL, to: [ops@example.com] } }
  - { on: [dead], email: { secret: WRONG, to: [ops@example.com] } }
`)
	answers, err := localTrusting(w, trust).Notices.Try(t.Context(), w.Caller.OrgID, "shop")
	require.NoError(t, err)
	require.Len(t, answers, 5, "each receiver once")
	said := map[string]string{}
	for _, a := range answers {
		said[a.Secret] = fmt.Sprint(a.Arrived, " ", a.Said)
	}
	require.Equal(t, "true accepted it", said["MAIL"])
	require.Equal(t, "true answered 202", said["PAGER"])
	require.Contains(t, said["SLACK"], "false slack of secret SLACK: answered 410: no_service at /[secret]")
	require.Contains(t, said["UNBOUND"], "may not be sent to hooks.example.com")
	require.Contains(t, said["WRONG"], "log in")
	require.NotContains(t, said["WRONG"], "guess")
	require.Len(t, box.received(), 1)
	require.Equal(t, "resolve", pager.bodies()[0]["event_action"], "nobody is called for it")
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`))

	none, err := w.D.Notices.Try(t.Context(), uuid.New(), "shop")
	require.NoError(t, err)
	require.Empty(t, none, "of another org")
}
