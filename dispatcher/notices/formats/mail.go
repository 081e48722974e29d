package formats

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/smtp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// Mail returns a message as an e-mail. Answers of a trouble and its end are one conversation.
func Mail(m Message, from string, to []string) ([]byte, error) {
	domain := from[strings.LastIndex(from, "@")+1:]
	thread := "<" + base64.RawURLEncoding.EncodeToString([]byte(m.Topic)) + "@" + domain + ">"

	var out bytes.Buffer
	header := func(name, value string) { fmt.Fprintf(&out, "%s: %s\r\n", name, value) }
	header("From", "dagctl <"+from+">")
	header("To", strings.Join(to, ",\r\n "))
	header("Subject", mime.QEncoding.Encode("utf-8", Cut("[dagctl] "+line(m.Title), 200)))
	header("Date", m.At.UTC().Format(time.RFC1123Z))
	header("Message-ID", "<"+m.ID+"@"+domain+">")
	header("References", thread)
	header("Auto-Submitted", "auto-generated")
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "quoted-printable")
	out.WriteString("\r\n")

	body := quotedprintable.NewWriter(&out)
	_, err := body.Write([]byte(strings.ReplaceAll(plain(m), "\n", "\r\n")))
	return out.Bytes(), errors.Join(err, body.Close())
}

// plain returns a message as text.
func plain(m Message) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", line(m.Title))
	if m.Text != "" {
		text := strings.ReplaceAll(Cut(m.Text, 4000), "\r", "")
		fmt.Fprintf(&out, "\n    %s\n", strings.ReplaceAll(text, "\n", "\n    "))
	}

	if len(m.Facts) > 0 {
		out.WriteString("\n")
	}
	for _, f := range m.Facts {
		fmt.Fprintf(&out, "%s: %s\n", f.Name, line(f.Value))
	}
	if m.Link != "" {
		fmt.Fprintf(&out, "\n%s\n", m.Link)
	}
	return out.String()
}

// MailServer is where e-mails are handed in.
type MailServer struct {
	Host, Port     string
	User, Password string // empty: it asks for none
	TLS            bool   // from the first byte on; otherwise by STARTTLS
	Client         *tls.Config
	Dial           func(ctx context.Context, network, address string) (net.Conn, error)
}

// ParseMailServer reads an address such as smtp://USER:PASSWORD@HOST:587, which begins to encrypt with STARTTLS, or
// smtps://USER:PASSWORD@HOST:465. name is that of the secret which has it, for errors.
func ParseMailServer(name, address string) (s MailServer, err error) {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" {
		return s, fault.New(fault.Invalid, "secret %s is not the address of a mail server", name).
			WithHint("set it to smtp://USER:PASSWORD@HOST:587, or to smtps://USER:PASSWORD@HOST:465")
	}
	s = MailServer{Host: u.Hostname(), Port: u.Port(), User: u.User.Username(), TLS: u.Scheme == "smtps"}
	s.Password, _ = u.User.Password()
	if s.Port == "" {
		s.Port = map[bool]string{false: "587", true: "465"}[s.TLS]
	}
	return s, nil
}

// Origin is the server as a URL, to compare it with the hosts that a secret is bound to.
func (s MailServer) Origin() *url.URL {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(s.Host, s.Port)}
}

// Send hands in an e-mail, and returns what the server answered. It never sends one over a connection in the clear.
func (s MailServer) Send(ctx context.Context, from string, to []string, mail []byte) (answer string, err error) {
	conn, err := s.Dial(ctx, "tcp", net.JoinHostPort(s.Host, s.Port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return "", err
		}
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	secured := &tls.Config{}
	if s.Client != nil {
		secured = s.Client.Clone()
	}
	secured.ServerName = s.Host
	if s.TLS {
		conn = tls.Client(conn, secured)
	}
	client, err := smtp.NewClient(conn, s.Host)
	if err != nil {
		return "", fmt.Errorf("greeting: %w", err)
	}
	if err := s.open(client, secured); err != nil {
		return "", err
	}

	if err := client.Mail(from); err != nil {
		return "", fmt.Errorf("sender %s: %w", from, err)
	}
	for _, address := range to {
		if err := client.Rcpt(address); err != nil {
			return "", fmt.Errorf("recipient %s: %w", address, err)
		}
	}
	body, err := client.Data()
	if err != nil {
		return "", err
	}
	if _, err := body.Write(mail); err != nil {
		return "", err
	}
	if err := body.Close(); err != nil {
		return "", err
	}
	_ = client.Quit() // it has the e-mail by now
	return "accepted it", nil
}

// open encrypts the connection and logs in.
func (s MailServer) open(client *smtp.Client, secured *tls.Config) error {
	if !s.TLS {
		if ok, _ := client.Extension("STARTTLS"); !ok {
			return fault.New(fault.Invalid, "the mail server does not offer STARTTLS").
				WithHint("use smtps://, if it encrypts from the first byte on")
		}
		if err := client.StartTLS(secured); err != nil {
			return fmt.Errorf("STARTTLS: %w", err)
		}
	}
	if s.User == "" {
		return nil
	}

	ok, methods := client.Extension("AUTH")
	if !ok {
		return fault.New(fault.Invalid, "the mail server offers no log-in").
			WithHint("leave user and password out of the secret's address")
	}
	var auth smtp.Auth
	switch offered := strings.Fields(strings.ToUpper(methods)); {
	case slices.Contains(offered, "PLAIN"):
		auth = smtp.PlainAuth("", s.User, s.Password, s.Host)
	case slices.Contains(offered, "LOGIN"):
		auth = loginAuth{s.User, s.Password}
	default:
		return fault.New(fault.Invalid, "the mail server offers to log in by %s only, and not by PLAIN or LOGIN",
			methods).WithHint("use a server or a relay that takes a user and a password")
	}
	if err := client.Auth(auth); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	return nil
}

// loginAuth is the method LOGIN, which some servers offer and PLAIN they do not. It asks for the user, then for the
// password.
type loginAuth struct{ user, password string }

func (a loginAuth) Start(*smtp.ServerInfo) (string, []byte, error) { return "LOGIN", nil, nil }

func (a loginAuth) Next(asked []byte, more bool) ([]byte, error) {
	if !more {
		return nil, nil
	}
	if strings.HasPrefix(strings.ToLower(string(asked)), "user") {
		return []byte(a.user), nil
	}
	return []byte(a.password), nil
}
