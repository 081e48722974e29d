package web

import (
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// rulesView is a page of the org's trust rules, with the form that adds another one.
type rulesView struct {
	Rules     []identity.Rule
	Next      template.URL // query of the next page; empty on the last page
	Audience  string       // what the tokens of workloads must be made for; empty: the server has no address
	Added     identity.NewRule
	Claims    string // as the form has them: CLAIM=PATTERN, one on a line
	Rights    rights
	Providers []identity.Provider
	Wrong     *rest.Problem
}

func (a *Access) rules(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showRules(w, r, caller, rulesView{})
}

func (a *Access) showRules(w http.ResponseWriter, r *http.Request, caller authz.Caller, v rulesView) error {
	list, err := a.Identity.ListRules(r.Context(), caller, pageOf(r))
	if err != nil {
		return err
	}
	roles, err := a.orgRoles(r.Context(), caller)
	if err != nil {
		return err
	}

	v.Rules, v.Next = list.Items, nextPage(r, list.NextCursor)
	v.Rights, v.Providers = v.Rights.offering(roles), a.Identity.Providers
	if a.Identity.BaseURL != "" {
		v.Audience = a.Identity.Audience(caller.OrgSlug)
	}
	return renderAccess(w, caller, "trust.html", "Trust", "trust", v.Wrong, v)
}

func (a *Access) addRule(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	v := rulesView{Claims: f.Get("claims"), Rights: rightsOf(f)}
	v.Added = identity.NewRule{Name: f.Get("name"), Kind: identity.RuleKind(f.Get("kind")),
		Issuer: strings.TrimSpace(f.Get("issuer")), Role: authz.Role(v.Rights.Role), Grants: v.Rights.grants(),
		OrgRoles: v.Rights.OrgRoles}

	if v.Added.Claims, err = readClaims(v.Claims); err == nil {
		_, err = a.Identity.CreateRule(r.Context(), caller, v.Added)
	}
	if v.Wrong = wrongWith(err); v.Wrong != nil {
		return a.showRules(w, r, caller, v)
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The rule "+v.Added.Name+" is added.")
	http.Redirect(w, r, "/trust", http.StatusSeeOther)
	return nil
}

// readClaims reads lines CLAIM=PATTERN. Several lines of one claim are patterns of which one must fit.
func readClaims(text string) (identity.Conditions, error) {
	conditions := identity.Conditions{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, pattern, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fault.New(fault.Invalid, "%q is not like CLAIM=PATTERN", line).
				WithHint("write one claim on a line, such as repository_id=123456")
		}
		name, pattern = strings.TrimSpace(name), strings.TrimSpace(pattern)
		conditions[name] = append(conditions[name], pattern)
	}
	return conditions, nil
}

// rulePath returns the path below which a rule is.
func rulePath(name string) string { return "/trust/" + url.PathEscape(name) }

func (a *Access) askToRemoveRule(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	rule, err := a.Identity.GetRule(r.Context(), caller, r.PathValue("rule"))
	if err != nil {
		return err
	}
	return renderAccess(w, caller, "confirm.html", "Remove the rule "+rule.Name, "trust", nil, confirmView{
		Says:   "Whoever is let in by this rule alone is out at once: people who are signed in, and workloads.",
		Action: rulePath(rule.Name) + "/remove", Button: "Remove", Back: "/trust"})
}

func (a *Access) removeRule(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	if err := a.Identity.DeleteRule(r.Context(), caller, r.PathValue("rule")); err != nil {
		return err
	}
	tell(w, r, caller, "The rule "+r.PathValue("rule")+" is removed.")
	http.Redirect(w, r, "/trust", http.StatusSeeOther)
	return nil
}
