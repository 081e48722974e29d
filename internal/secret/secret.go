// Package secret holds values that must never be shown. A Value prints, logs and encodes as [secret]; whoever needs the
// text says where it is to go, and gets it only where an admin has allowed that.
//
// Vocabulary: a host is where a secret may be sent: "api.example.com" (https on its port), "api.example.com:8443",
// "http://box.internal:8080" (in the clear), or "*", anywhere, which programs need since nobody sees where they send
// things. It owns no tables.
package secret

import (
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Anywhere is the host that allows every destination.
const Anywhere = "*"

const mask = "[secret]"

// Value is a secret's text and where it may go.
type Value struct {
	name  string
	text  string
	hosts []string
}

// New makes a value. The hosts are as ValidHost wants them.
func New(name, text string, hosts []string) Value { return Value{name, text, hosts} }

func (Value) String() string               { return mask }
func (Value) GoString() string             { return mask }
func (Value) LogValue() slog.Value         { return slog.StringValue(mask) }
func (Value) MarshalText() ([]byte, error) { return []byte(mask), nil }

// Reveal is the text, for a use that sends it nowhere: the key of a signature.
func (v Value) Reveal() string { return v.text }

// Hosts are where it may go.
func (v Value) Hosts() []string { return slices.Clone(v.hosts) }

// For is the text for a request to a URL, refused as Forbidden where no admin bound the secret to its host.
func (v Value) For(u *url.URL) (string, error) {
	if !slices.ContainsFunc(v.hosts, func(host string) bool { return matches(host, u) }) {
		return "", fault.New(fault.Forbidden, "secret %s may not be sent to %s", v.name, origin(u)).
			WithHint("an admin allows it with `dagctl secrets bind %s --host %s`", v.name, origin(u))
	}
	return v.text, nil
}

// ForProgram is the text for a program, which may send it wherever it likes.
func (v Value) ForProgram() (string, error) {
	if !slices.Contains(v.hosts, Anywhere) {
		return "", fault.New(fault.Forbidden, "secret %s may not be given to a program: that could send it anywhere", v.name).
			WithHint("an admin allows it with `dagctl secrets bind %s --host '*'`", v.name)
	}
	return v.text, nil
}

// origin is a URL's host as a binding would be written.
func origin(u *url.URL) string {
	if u.Scheme == "http" {
		return "http://" + u.Host
	}
	return u.Host
}

func matches(host string, u *url.URL) bool {
	if host == Anywhere {
		return true
	}
	scheme, port := "https", "443"
	if rest, ok := strings.CutPrefix(host, "http://"); ok {
		scheme, port, host = "http", "80", rest
	}
	name, p, err := net.SplitHostPort(host)
	if err == nil {
		port = p
	} else {
		name = strings.Trim(host, "[]")
	}
	actual := u.Port()
	if actual == "" {
		actual = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme == scheme && strings.EqualFold(u.Hostname(), name) && actual == port
}

var hostForm = regexp.MustCompile(`^(http://)?([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// ValidHost says whether a text is a host that a secret can be bound to.
func ValidHost(host string) error {
	if host == Anywhere || hostForm.MatchString(host) {
		return nil
	}
	return fault.New(fault.Invalid, "%q is not a host", host).
		WithHint("write it as api.example.com, api.example.com:8443, http://box.internal:8080, or *")
}

// shortest is the length from which a value is looked for in texts: below it, it would turn up by accident.
const shortest = 4

// Redact takes the values out of a text that somebody else wrote, such as a program's error output.
func Redact(text string, values map[string]Value) string {
	var all []string
	for _, v := range values {
		all = append(all, v.text)
		all = append(all, strings.Fields(v.text)...) // what is printed line by line, or cut at blanks
	}
	// The longest first, or one that begins with another would leave its end.
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, v := range all {
		if len(v) >= shortest {
			text = strings.ReplaceAll(text, v, mask)
		}
	}
	return text
}
