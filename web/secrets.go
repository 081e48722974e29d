package web

import (
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// secretsView is a page of the org's secrets, without their values, with the form that sets one.
type secretsView struct {
	Secrets []authz.Secret
	Next    template.URL // query of the next page; empty on the last page
	Name    string       // that the form has; never its value
	Wrong   *rest.Problem
}

func (a *Access) secrets(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showSecrets(w, r, caller, secretsView{})
}

func (a *Access) showSecrets(w http.ResponseWriter, r *http.Request, caller authz.Caller, v secretsView) error {
	list, err := a.Vault.ListSecrets(r.Context(), caller, pageOf(r))
	if err != nil {
		return err
	}
	v.Secrets, v.Next = list.Items, nextPage(r, list.NextCursor)
	return renderPage(w, caller, "secrets.html", "Secrets", "secrets", v.Wrong, v)
}

// renderPage writes a page, with status 422 if it shows what is wrong with a form.
func renderPage(
	w http.ResponseWriter, caller authz.Caller, page, title, tab string, wrong *rest.Problem, view any,
) error {
	status := http.StatusOK
	if wrong != nil {
		status = http.StatusUnprocessableEntity
	}
	return render(w, status, page, layout{Title: title, Tab: tab, Caller: caller, View: view})
}

// secretPath returns the path of a secret's page.
func secretPath(name string) string { return "/secrets/" + url.PathEscape(name) }

// setSecret stores a value. It shows it on no page, also where it is refused.
func (a *Access) setSecret(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	name, overlap, err := f.Get("name"), time.Duration(0), error(nil)
	if text := f.Get("overlap"); text != "" {
		hours, wrong := strconv.Atoi(text)
		if overlap = time.Duration(hours) * time.Hour; wrong != nil || hours < 0 || overlap > authz.MaxOverlap {
			err = fault.New(fault.Invalid, "the value before counts 0 to %d hours longer, not %q",
				int(authz.MaxOverlap.Hours()), text)
		}
	}

	if err == nil {
		_, err = a.Vault.ReplaceSecret(r.Context(), caller, name, f.Get("value"), overlap)
	}
	if wrong := wrongWith(err); wrong != nil {
		return a.showSecrets(w, r, caller, secretsView{Name: name, Wrong: wrong})
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The secret "+name+" is stored.")
	http.Redirect(w, r, secretPath(name), http.StatusSeeOther)
	return nil
}

// secretView is a secret with the forms that change it.
type secretView struct {
	authz.Secret
	Path  string
	Wrong *rest.Problem
}

func (a *Access) secret(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showSecret(w, r, caller, nil)
}

func (a *Access) showSecret(w http.ResponseWriter, r *http.Request, caller authz.Caller, wrong *rest.Problem) error {
	s, err := a.Vault.GetSecret(r.Context(), caller, r.PathValue("name"))
	if err != nil {
		return err
	}
	return renderPage(w, caller, "secret.html", "Secret "+s.Name, "secrets", wrong,
		secretView{Secret: s, Path: secretPath(s.Name), Wrong: wrong})
}

// bindSecret adds what the fields name, and removes what is ticked.
func (a *Access) bindSecret(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}

	_, err = a.Vault.BindSecret(r.Context(), caller, r.PathValue("name"), authz.Binding{
		AddJobs: words(f.Get("jobs")), AddHosts: words(f.Get("hosts")), AddPrograms: words(f.Get("programs")),
		RemoveJobs: f.Values["remove_jobs"], RemoveHosts: f.Values["remove_hosts"],
		RemovePrograms: f.Values["remove_programs"]})
	if wrong := wrongWith(err); wrong != nil && wrong.Status != http.StatusNotFound {
		return a.showSecret(w, r, caller, wrong)
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The bindings are changed.")
	http.Redirect(w, r, secretPath(r.PathValue("name")), http.StatusSeeOther)
	return nil
}

func (a *Access) askDeleteSecret(r *http.Request, caller authz.Caller) (q question, err error) {
	s, err := a.Vault.GetSecret(r.Context(), caller, r.PathValue("name"))
	if err != nil {
		return q, err
	}

	q.title = "Delete " + s.Name
	q.view = confirmView{Says: "Nothing can use its value any more, and nobody can get it back.", Action: r.URL.Path,
		Typed: s.Name, Button: "Delete", Danger: true, Back: secretPath(s.Name),
		Command: "dagctl secrets delete " + s.Name}
	for _, job := range s.Jobs {
		q.view.Effects = append(q.view.Effects, job+" is bound to it; as long as it uses it, the secret stays.")
	}
	gone := "/secrets"
	q.to = &gone
	q.do = func(form) error { return a.Vault.DeleteSecret(r.Context(), caller, s.Name, false) }
	return q, nil
}

// usageView is what the org uses, and what it may.
type usageView struct {
	Org   string
	Items []usageRow
}

// usageRow is one quota for people.
type usageRow struct {
	authz.Usage
	Name, Per  string
	Says, Most string // as people read them
}

// quotaNames say in words what quotas count, and in which time.
var quotaNames = map[authz.Quota][2]string{
	authz.RequestsPerMinute: {"Requests", "this minute"}, authz.QueuedTasks: {"Queued tasks", "now"},
	authz.UploadsPerDay: {"Uploads of code", "today, UTC"}, authz.StorageBytes: {"Storage", "kept"},
	authz.EnginesAtOnce: {"Engines at work", "on one server, now"},
}

func (a *Access) usage(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	found, err := authz.OrgUsageOf(r.Context(), a.Identity.Requests, caller)
	if err != nil {
		return err
	}

	v := usageView{Org: found.Org}
	for _, u := range found.Items {
		format := func(n int64) string { return number(n) }
		if u.Quota == authz.StorageBytes {
			format = Size
		}
		row := usageRow{Usage: u, Name: quotaNames[u.Quota][0], Per: quotaNames[u.Quota][1], Says: format(u.Used)}
		if u.Most != nil {
			row.Most = format(*u.Most)
		}
		v.Items = append(v.Items, row)
	}
	return render(w, http.StatusOK, "usage.html", layout{Title: "Usage", Tab: "usage", Caller: caller, View: v})
}

// Age returns how long ago a secret was set.
func (v secretView) Age() string { return ago(clock.Now(), v.UpdatedAt) }
