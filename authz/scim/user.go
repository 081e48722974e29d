package scim

import (
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
)

// maxEmails is how many e-mail addresses a user may have.
const maxEmails = 20

// user writes a user as a resource.
func (s *Service) user(u identity.Provisioned) map[string]any {
	resource := map[string]any(documentOf(u.Account).named())
	resource["schemas"], resource["id"] = []string{userSchema}, u.ID.String()
	groups := []any{}
	for _, g := range u.Groups {
		groups = append(groups, map[string]any{"value": g.ID.String(), "display": g.Name,
			"$ref": s.location("Groups", g.ID.String())})
	}
	resource["groups"] = groups
	resource["meta"] = s.meta("User", u.ID, u.CreatedAt, u.UpdatedAt, u.ETag())
	return resource
}

func (s *Service) meta(kind string, id uuid.UUID, created, updated time.Time, etag string) map[string]any {
	return map[string]any{"resourceType": kind, "created": created.UTC().Format(time.RFC3339Nano),
		"lastModified": updated.UTC().Format(time.RFC3339Nano), "version": etag,
		"location": s.location(kind+"s", id.String())}
}

// documentOf writes an account as a document, without what is empty.
func documentOf(a identity.Account) document {
	d := document{"username": a.UserName, "active": a.Active != nil && *a.Active}
	for name, text := range map[string]string{"externalid": a.ExternalID, "displayname": a.Profile.DisplayName} {
		if text != "" {
			d[name] = text
		}
	}

	name := map[string]any{}
	for part, text := range map[string]string{"formatted": a.Profile.FullName, "givenname": a.Profile.GivenName,
		"familyname": a.Profile.FamilyName} {
		if text != "" {
			name[part] = text
		}
	}
	if len(name) > 0 {
		d["name"] = name
	}

	emails := []any{}
	for _, e := range a.Profile.Emails {
		email := map[string]any{"value": e.Value}
		if e.Type != "" {
			email["type"] = e.Type
		}
		if e.Display != "" {
			email["display"] = e.Display
		}
		if e.Primary {
			email["primary"] = true
		}
		emails = append(emails, email)
	}
	if len(emails) > 0 {
		d["emails"] = emails
	}
	return d
}

// spelling is how SCIM writes the names that have capitals.
var spelling = map[string]string{"username": "userName", "externalid": "externalId", "displayname": "displayName",
	"givenname": "givenName", "familyname": "familyName"}

// named returns a document with names as SCIM writes them.
func (d document) named() document {
	named := document{}
	for name, value := range d {
		if inner, ok := value.(map[string]any); ok {
			value = map[string]any(document(inner).named())
		}
		if s, ok := spelling[name]; ok {
			name = s
		}
		named[name] = value
	}
	return named
}

// accountOf reads a document as an account.
func accountOf(d document) (a identity.Account, err error) {
	if a.UserName, err = d.required("userName"); err != nil {
		return a, err
	}
	name, err := d.object("name")
	if err != nil {
		return a, err
	}
	for _, part := range []struct {
		of   document
		name string
		into *string
	}{{d, "externalId", &a.ExternalID}, {d, "displayName", &a.Profile.DisplayName},
		{name, "formatted", &a.Profile.FullName}, {name, "givenName", &a.Profile.GivenName},
		{name, "familyName", &a.Profile.FamilyName}} {
		if *part.into, err = part.of.text(part.name); err != nil {
			return a, err
		}
	}

	if a.Profile.Emails, err = emailsOf(d); err != nil {
		return a, err
	}
	if value := d["active"]; value != nil {
		active, err := truth(value)
		if err != nil {
			return a, err
		}
		a.Active = &active
	}
	return a, nil
}

// emailsOf reads the e-mail addresses of a document. Ones without a value, as some providers send, are left out.
func emailsOf(d document) (emails []identity.Email, err error) {
	all, err := d.objects("emails")
	if err != nil {
		return nil, err
	}
	if len(all) > maxEmails {
		return nil, invalid(invalidValue, "a user has at most %d e-mail addresses", maxEmails)
	}

	primaries := 0
	for _, one := range all {
		var e identity.Email
		for name, into := range map[string]*string{"value": &e.Value, "type": &e.Type, "display": &e.Display} {
			if *into, err = one.text(name); err != nil {
				return nil, err
			}
		}
		if value := one["primary"]; value != nil {
			if e.Primary, err = truth(value); err != nil {
				return nil, err
			}
		}
		if e.Value == "" {
			continue
		}
		if !identity.IsEmail(e.Value) {
			return nil, invalid(invalidValue, "%.100q is not an e-mail address", e.Value)
		}
		if e.Primary {
			primaries++
		}
		emails = append(emails, e)
	}
	if primaries > 1 {
		return nil, invalid(invalidValue, "only one e-mail address can be primary")
	}
	return emails, nil
}

func (s *Service) listUsers(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	window, err := windowOf(r, maxCount)
	if err != nil {
		return err
	}
	filter, some, err := userFilter(r.URL.Query().Get("filter"))
	if err != nil {
		return err
	}

	items, total, chosen := []any{}, 0, selectionOf(r)
	if some {
		users, n, err := s.identity.ListProvisioned(r.Context(), p, filter, window)
		if err != nil {
			return err
		}
		total = n
		for _, u := range users {
			items = append(items, chosen.of(s.user(u)))
		}
	}
	return write(w, http.StatusOK, list(total, window.Skip, items))
}

// userFilter reads the filter of a list of users. some is false if no user can meet it.
func userFilter(text string) (f identity.AccountFilter, some bool, err error) {
	if strings.TrimSpace(text) == "" {
		return f, true, nil
	}
	all, err := parseFilter(text)
	if err != nil {
		return f, false, err
	}

	some = true
	for _, c := range all {
		name, value := c.path.attribute, c.text()
		if c.path.sub != "" {
			name += "." + c.path.sub
		}
		onlyType := len(c.path.filter) == 1 && c.path.filter[0].path.attribute == "type"
		switch {
		case c.path.foreign || len(c.path.filter) > 0 && !(onlyType && name == "emails.value"):
			return f, false, notUnderstood(text)
		case name == "username":
			some = some && narrow(&f.UserName, value)
		case name == "externalid":
			some = some && narrow(&f.ExternalID, value)
		case name == "displayname":
			some = some && narrow(&f.DisplayName, value)
		case name == "emails.value", name == "emails":
			some = some && narrow(&f.Email, value)
			if onlyType {
				some = some && narrow(&f.EmailType, c.path.filter[0].text())
			}
		case name == "id":
			some = some && narrowID(&f.ID, value)
		case name == "active":
			active, err := truth(c.value)
			if err != nil {
				return f, false, notUnderstood(text)
			}
			some = some && narrow(&f.Active, active)
		default:
			return f, false, notUnderstood(text)
		}
	}
	return f, some, nil
}

// narrow adds a condition to those of a filter, and reports whether anything can meet both.
func narrow[T comparable](into **T, value T) bool {
	if *into != nil && **into != value {
		return false
	}
	*into = &value
	return true
}

func narrowID(into **uuid.UUID, text string) bool {
	id, err := uuid.Parse(text)
	return err == nil && narrow(into, id)
}

func (s *Service) createUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	d, err := readDocument(r)
	if err != nil {
		return err
	}
	account, err := accountOf(d)
	if err != nil {
		return err
	}
	u, err := s.identity.Provision(r.Context(), p, account)
	if err != nil {
		return err
	}
	return send(w, r, http.StatusCreated, selectionOf(r).of(s.user(u)))
}

func (s *Service) getUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	id, err := resourceID(r)
	if err != nil {
		return err
	}
	u, err := s.identity.GetProvisioned(r.Context(), p, id)
	if err != nil {
		return err
	}
	return send(w, r, http.StatusOK, selectionOf(r).of(s.user(u)))
}

func (s *Service) putUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	d, err := readDocument(r)
	if err != nil {
		return err
	}
	return s.changeUser(w, r, p, func(identity.Account) (identity.Account, error) { return accountOf(d) })
}

func (s *Service) patchUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	operations, err := readPatch(r)
	if err != nil {
		return err
	}
	return s.changeUser(w, r, p, func(a identity.Account) (identity.Account, error) {
		d := documentOf(a)
		for _, o := range operations {
			if err := o.onUser(d); err != nil {
				return a, err
			}
		}
		return accountOf(d)
	})
}

func (s *Service) changeUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner,
	change func(identity.Account) (identity.Account, error)) error {
	id, err := resourceID(r)
	if err != nil {
		return err
	}
	u, err := s.identity.Reprovision(r.Context(), p, id, r.Header.Get("If-Match"), change)
	if err != nil {
		return err
	}
	return send(w, r, http.StatusOK, selectionOf(r).of(s.user(u)))
}

func (s *Service) deleteUser(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	id, err := resourceID(r)
	if err != nil {
		return err
	}
	if err := s.identity.Deprovision(r.Context(), p, id, r.Header.Get("If-Match")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
