package identity

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/fault"
)

// Claims are what a verified token says, by name.
type Claims map[string]any

// text returns a claim that is a text, or an empty one.
func (c Claims) text(name string) string {
	s, _ := c[name].(string)
	return s
}

// moment returns a claim that is a time, in seconds of Unix. ok is false if it is none.
func (c Claims) moment(name string) (at time.Time, ok bool) {
	n, _ := c[name].(json.Number)
	seconds, err := n.Float64()
	if err != nil || math.Abs(seconds) > 1e12 {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}

// email returns the address that the provider has verified, in lower case, or an empty text. Providers that only hold
// addresses they verified say so by a setting of the server's config.
func (c Claims) email(trusted bool) string {
	verified, said := c["email_verified"]
	if verified == true || verified == "true" || trusted && !said {
		return lowerASCII(c.text("email"))
	}
	return ""
}

// lowerASCII returns a text with its Latin capitals in lower case, and nothing else changed: to fold other letters
// would make one address of two.
func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

// values returns the texts of a claim: of each element if it is a list. Numbers and truth values count as their JSON.
func (c Claims) values(name string) (texts []string) {
	list, ok := c[name].([]any)
	if !ok {
		list = []any{c[name]}
	}
	for _, v := range list {
		switch v := v.(type) {
		case string:
			texts = append(texts, v)
		case json.Number:
			texts = append(texts, v.String())
		case bool:
			texts = append(texts, fmt.Sprint(v))
		}
	}
	return texts
}

// withEmail returns the claims as rules see them: with email and email_domain only if the address is verified.
func (c Claims) withEmail(trusted bool) Claims {
	seen := maps.Clone(c)
	delete(seen, "email")
	delete(seen, "email_domain")
	if address := c.email(trusted); address != "" {
		seen["email"] = address
		_, seen["email_domain"], _ = strings.Cut(address, "@")
	}
	return seen
}

// Conditions name claims, and the texts or patterns of which each must be one. In a pattern, * stands for any text
// without / and : in it, which separate the parts of what issuers write.
type Conditions map[string][]string

// match reports whether the claims meet every condition.
func (c Conditions) match(claims Claims) bool {
	for name, patterns := range c {
		has := claims.values(name)
		if !slices.ContainsFunc(patterns, func(pattern string) bool {
			return slices.ContainsFunc(has, func(text string) bool { return matches(pattern, text) })
		}) {
			return false
		}
	}
	return len(c) > 0
}

// matches reports whether a text is of a pattern.
func matches(pattern, text string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == text
	}
	expression := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `[^/:]*`)
	return regexp.MustCompile(`^` + expression + `$`).MatchString(text)
}

// claimGroup is the claim of rules for groups.
const claimGroup = "group"

// nameGroups reports whether the conditions name groups, and nothing else.
func (c Conditions) nameGroups() bool {
	return len(c) == 1 && len(c[claimGroup]) > 0 &&
		!slices.ContainsFunc(c[claimGroup], func(name string) bool { return strings.Contains(name, "*") })
}

// constant are claims that tell nobody from anybody else.
var constant = []string{"iss", "aud", "azp", "exp", "nbf", "iat", "jti", "nonce", "email_verified", "typ", "auth_time"}

// Limits of conditions.
const (
	maxConditions = 20
	maxPatterns   = 50
	maxPattern    = 300 // bytes
)

// check returns what is wrong with conditions.
func (c Conditions) check() (problems []fault.Problem) {
	add := func(format string, args ...any) {
		problems = append(problems, fault.Problem{Location: "claims", Message: fmt.Sprintf(format, args...)})
	}
	if len(c) == 0 {
		add("a rule needs a claim: without one it trusts everybody whom the issuer knows")
	}
	if len(c) > maxConditions {
		add("a rule has at most %d claims", maxConditions)
	}

	if len(c) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(c)), func(name string) bool {
		return !slices.Contains(constant, name)
	}) {
		add("a rule needs a claim beside %s: every token of the issuer has these", strings.Join(constant, ", "))
	}

	for _, name := range slices.Sorted(maps.Keys(c)) {
		if name == "" || len(name) > maxPattern {
			add("%q is not the name of a claim", name)
		}
		if len(c[name]) == 0 || len(c[name]) > maxPatterns {
			add("claim %s needs 1 to %d texts or patterns", name, maxPatterns)
		}
		for _, pattern := range c[name] {
			switch {
			case pattern == "" || len(pattern) > maxPattern || !utf8.ValidString(pattern):
				add("%s: %q is not a pattern: use up to %d bytes", name, pattern, maxPattern)
			case !strings.ContainsFunc(pattern, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }):
				add("%s: %q says nothing: any value fits it", name, pattern)
			}
		}
	}
	return problems
}
