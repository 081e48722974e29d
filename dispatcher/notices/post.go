package notices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/notices/formats"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/webhook"
)

// pagerDuty is where its events go, if a secret has the integration key alone.
const pagerDuty = "https://events.pagerduty.com/v2/enqueue"

// longestAnswer bounds what is kept of what a receiver answers.
const longestAnswer = 200

// post sends a notice once, and returns what the receiver answered. Its errors are stored and logged, so they do not
// name the receiver: the address is a secret.
func (n *Notices) post(ctx context.Context, org uuid.UUID, p payload) (answer string, err error) {
	name := p.Receiver.Secret
	values, err := n.vault.Reveal(ctx, org, authz.SecretUser{Name: p.Notice.Data.DAG}, []string{name})
	if err != nil {
		return "", err
	}
	value := values[name]
	if p.Format == dag.NotifyEmail {
		answer, err = n.mail(ctx, p, value)
	} else {
		answer, err = n.request(ctx, p, value)
	}

	redact := redactor(name, value)
	if err != nil {
		if known := (*fault.Error)(nil); errors.As(err, &known) {
			return "", err
		}
		return "", fmt.Errorf("%s of secret %s: %s", formatOf(p.Format), name, redact.Redact(err.Error()))
	}
	return redact.Redact(answer), nil
}

// redactor removes a secret from what its receiver says, and the parts of it that are secret by themselves.
func redactor(name string, value secret.Value) *secret.Redactor {
	parts := map[string]secret.Value{name: value}
	if u, err := url.Parse(value.Reveal()); err == nil {
		password, _ := u.User.Password()
		for i, part := range []string{u.Fragment, password, u.RawQuery, strings.Trim(u.Path, "/")} {
			if part != "" {
				parts[fmt.Sprint(name, i)] = secret.New(name, part, nil)
			}
		}
	}
	return secret.NewRedactor(parts)
}

func formatOf(format string) string {
	if format == "" {
		return dag.NotifyWebhook
	}
	return format
}

// request sends a notice over HTTP.
func (n *Notices) request(ctx context.Context, p payload, value secret.Value) (answer string, err error) {
	text := value.Reveal()
	if p.Format == dag.NotifyPagerDuty && !strings.Contains(text, "://") {
		text = pagerDuty + "#" + strings.TrimSpace(text)
	}
	target, key, err := webhook.Target(p.Receiver.Secret, text)
	if err != nil {
		return "", err
	}
	if _, err := value.For(target); err != nil {
		return "", err
	}
	req, err := requestOf(ctx, p, target, key)
	if err != nil {
		return "", err
	}

	resp, err := n.client.Do(req)
	if err != nil {
		var named *url.Error // contains the URL
		if errors.As(err, &named) {
			err = named.Err
		}
		return "", err
	}
	defer resp.Body.Close()

	said, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
	answer = fmt.Sprintf("answered %d", resp.StatusCode)
	if line := strings.Join(strings.Fields(strings.ToValidUTF8(string(said), "?")), " "); line != "" {
		answer += ": " + string([]rune(line)[:min(len([]rune(line)), longestAnswer)])
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return "", errors.New(answer)
	}
	return answer, nil
}

// requestOf returns the request that delivers a notice.
func requestOf(ctx context.Context, p payload, target *url.URL, key string) (*http.Request, error) {
	body, err := bodyOf(p, key)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "secret %s is not a URL to send to", p.Receiver.Secret)
	}

	headers := map[string]string{"Content-Type": "application/json", "User-Agent": "dagctl"}
	if p.Format == "" {
		stamp := strconv.FormatInt(clock.Now().Unix(), 10)
		headers["Idempotency-Key"], headers["webhook-id"] = p.Notice.ID, p.Notice.ID
		headers["webhook-timestamp"] = stamp
		headers["webhook-signature"] = webhook.Sign(key, p.Notice.ID, stamp, body)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	return req, nil
}

// bodyOf returns what is sent to a receiver over HTTP. key is the part of the secret behind #.
func bodyOf(p payload, key string) ([]byte, error) {
	switch p.Format {
	case "":
		return json.Marshal(p.Notice)
	case dag.NotifySlack:
		return formats.Slack(p.message())
	case dag.NotifyTeams:
		return formats.Teams(p.message())
	case dag.NotifyPagerDuty:
		return formats.PagerDuty(p.message(), key)
	}
	return nil, errUnknownFormat(p.Format)
}

// mail sends a notice as an e-mail.
func (n *Notices) mail(ctx context.Context, p payload, value secret.Value) (answer string, err error) {
	server, err := formats.ParseMailServer(p.Receiver.Secret, value.Reveal())
	if err != nil {
		return "", err
	}
	if _, err := value.For(server.Origin()); err != nil {
		return "", err
	}
	from := p.From
	if from == "" {
		from = server.User
	}
	if !strings.Contains(from, "@") {
		return "", fault.New(fault.Invalid, "the e-mail has no sender: the user of secret %s is no address",
			p.Receiver.Secret).WithHint("name one as `from` in the DAG file")
	}

	text, err := formats.Mail(p.message(), from, p.To)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	server.Dial, server.Client = n.dialer.DialContext, n.tls
	return server.Send(ctx, from, p.To, text)
}
