// Package secret holds values that must never be shown. A Value prints, logs and encodes as [secret]. Code that needs
// the text must state where it goes, and gets it only if an admin has allowed that.
//
// Vocabulary: a host is a destination of a secret: "api.example.com" (https on its port), "api.example.com:8443",
// "http://box.internal:8080" (unencrypted), "*" for any that is reached with TLS, or "http://*" for any without. A
// grant lets the program of a job have a secret: the platform cannot see where programs send it. It owns no tables.
package secret

import (
	"cmp"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// Anywhere is the host that allows every destination with TLS, and anywhereClear that for those without.
const (
	Anywhere      = "*"
	anywhereClear = "http://*"
)

const mask = "[secret]"

// Value is a secret's text and the hosts to which it may go.
type Value struct {
	name  string
	text  string
	hosts []string

	program bool   // an admin lets the job's program have it
	grant   string // what an admin would have to grant for that; empty: the job
	another bool   // another program of the job may have it

	previous string // the text before this one; empty: none
	overlaps bool   // others may still sign with the previous text
}

// New returns a value. ValidHost must accept the hosts.
func New(name, text string, hosts []string) Value { return Value{name: name, text: text, hosts: hosts} }

// Granted returns the value as one that the job's program may have.
func (v Value) Granted() Value {
	v.program = true
	return v
}

// Refused returns the value as one that a program may not have. grant is what an admin would have to grant; another
// tells that another program of the same job may have it.
func (v Value) Refused(grant string, another bool) Value {
	v.program, v.grant, v.another = false, grant, another
	return v
}

func (Value) String() string               { return mask }
func (Value) GoString() string             { return mask }
func (Value) LogValue() slog.Value         { return slog.StringValue(mask) }
func (Value) MarshalText() ([]byte, error) { return []byte(mask), nil }

// Reveal returns the text, for a use that sends it nowhere, such as the key of a signature.
func (v Value) Reveal() string { return v.text }

// After returns the value as one that had another text before. overlaps tells whether others may still sign with that.
func (v Value) After(previous string, overlaps bool) Value {
	v.previous, v.overlaps = previous, overlaps
	return v
}

// Accepted returns the texts that others may sign with: that of Reveal, and the one before while they overlap.
func (v Value) Accepted() []string {
	if v.overlaps {
		return []string{v.text, v.previous}
	}
	return []string{v.text}
}

// Hosts returns the hosts to which the value may go.
func (v Value) Hosts() []string { return slices.Clone(v.hosts) }

// For returns the text for a request to a URL, or a Forbidden fault if no admin bound the secret to its host.
func (v Value) For(u *url.URL) (string, error) {
	if !slices.ContainsFunc(v.hosts, func(host string) bool { return matches(host, u) }) {
		return "", fault.New(fault.Forbidden, "secret %s may not be sent to %s", v.name, origin(u)).
			WithHint("an admin allows it with `dagctl secrets bind %s --host %s`", v.name, origin(u))
	}
	return v.text, nil
}

// ForProgram returns the text for the program of a job (DAG/JOB), which may send it anywhere, or a Forbidden fault if
// no admin granted it.
func (v Value) ForProgram(job string) (string, error) {
	switch grant := cmp.Or(v.grant, job); {
	case v.program:
		return v.text, nil
	case v.another:
		return "", fault.New(fault.Forbidden, "secret %s may not be given to the program of %s any more: the program "+
			"is another than the one that an admin granted it to", v.name, job).
			WithHint("an admin who has seen the program grants it with `dagctl secrets bind %s --program %s`",
				v.name, grant)
	default:
		return "", fault.New(fault.Forbidden, "secret %s may not be given to the program of %s, which could send it "+
			"anywhere", v.name, job).
			WithHint("an admin grants it with `dagctl secrets bind %s --program %s`", v.name, grant)
	}
}

// origin returns a URL's host in the form of a binding.
func origin(u *url.URL) string {
	if u.Scheme == "http" {
		return "http://" + u.Host
	}
	return u.Host
}

func matches(host string, u *url.URL) bool {
	switch host {
	case Anywhere:
		return u.Scheme == "https"
	case anywhereClear:
		return u.Scheme == "http"
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

var hostForm = late.Pattern(
	`^(http://)?([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// ValidHost returns an error if a text is not a host that a secret can be bound to.
func ValidHost(host string) error {
	if host == Anywhere || host == anywhereClear {
		return nil
	}
	form := hostForm.FindStringSubmatch(host)
	if form == nil {
		return fault.New(fault.Invalid, "%q is not a host", host).
			WithHint("write it as api.example.com, api.example.com:8443, http://box.internal:8080, or * for any " +
				"host with TLS")
	}
	port := strings.TrimPrefix(form[len(form)-1], ":")
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return fault.New(fault.Invalid, "%q has no port that there is", host).WithHint("ports are 1 to 65535")
	}
	return nil
}

// WrittenOut is what is said of a secret that is text where it has to be {secret: NAME}; what says what it is.
func WrittenOut(what string) string {
	return "the " + what + " is written out: versions keep it, and whoever sees the DAG reads it. Keep it with " +
		"`dagctl secrets set`, and give {secret: NAME}"
}
