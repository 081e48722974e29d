package scim

import (
	"net/http"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
)

// group writes a group as a resource.
func (s *Service) group(g identity.Group) map[string]any {
	resource := map[string]any{"schemas": []string{groupSchema}, "id": g.ID.String(), "displayName": g.Name,
		"meta": s.meta("Group", g.ID, g.CreatedAt, g.UpdatedAt, g.ETag())}
	if g.ExternalID != "" {
		resource["externalId"] = g.ExternalID
	}
	members := []any{}
	for _, m := range g.Members {
		members = append(members, map[string]any{"value": m.User.String(), "display": m.UserName, "type": "User",
			"$ref": s.location("Users", m.User.String())})
	}
	resource["members"] = members
	return resource
}

// groupOf reads a document as what a group is to be.
func groupOf(d document) (c identity.GroupChange, err error) {
	name, err := d.required("displayName")
	if err != nil {
		return c, err
	}
	externalID, err := d.text("externalId")
	if err != nil {
		return c, err
	}
	users, err := membersOf(d["members"])
	return identity.GroupChange{Name: &name, ExternalID: &externalID,
		Members: []identity.MemberChange{{Clear: true, Users: users}}}, err
}

func (s *Service) listGroups(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	chosen, most := selectionOf(r), maxCount
	withMembers := chosen.has("members")
	if withMembers {
		most = maxGroups
	}
	window, err := windowOf(r, most)
	if err != nil {
		return err
	}
	filter, some, err := groupFilter(r.URL.Query().Get("filter"))
	if err != nil {
		return err
	}

	items, total := []any{}, 0
	if some {
		groups, n, err := s.identity.ListGroups(r.Context(), p, filter, window, withMembers)
		if err != nil {
			return err
		}
		total = n
		for _, g := range groups {
			items = append(items, chosen.of(s.group(g)))
		}
	}
	return write(w, http.StatusOK, list(total, window.Skip, items))
}

// groupFilter reads the filter of a list of groups. some is false if no group can meet it.
func groupFilter(text string) (f identity.GroupFilter, some bool, err error) {
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
		switch {
		case c.path.foreign || len(c.path.filter) > 0:
			return f, false, notUnderstood(text)
		case name == "displayname":
			some = some && narrow(&f.Name, value)
		case name == "externalid":
			some = some && narrow(&f.ExternalID, value)
		case name == "id":
			some = some && narrowID(&f.ID, value)
		case name == "members", name == "members.value":
			some = some && narrowID(&f.Member, value)
		default:
			return f, false, notUnderstood(text)
		}
	}
	return f, some, nil
}

func (s *Service) createGroup(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	d, err := readDocument(r)
	if err != nil {
		return err
	}
	c, err := groupOf(d)
	if err != nil {
		return err
	}
	g, err := s.identity.CreateGroup(r.Context(), p, *c.Name, *c.ExternalID, c.Members[0].Users)
	if err != nil {
		return err
	}
	return send(w, r, http.StatusCreated, selectionOf(r).of(s.group(g)))
}

func (s *Service) getGroup(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	id, err := resourceID(r)
	if err != nil {
		return err
	}
	chosen := selectionOf(r)
	g, err := s.identity.GetGroup(r.Context(), p, id, chosen.has("members"))
	if err != nil {
		return err
	}
	return send(w, r, http.StatusOK, chosen.of(s.group(g)))
}

func (s *Service) putGroup(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	d, err := readDocument(r)
	if err != nil {
		return err
	}
	change, err := groupOf(d)
	if err != nil {
		return err
	}
	g, err := s.changeGroup(r, p, change)
	if err != nil {
		return err
	}
	return send(w, r, http.StatusOK, selectionOf(r).of(s.group(g)))
}

// patchGroup answers with nothing but the new version: a group may have very many members.
func (s *Service) patchGroup(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	operations, err := readPatch(r)
	if err != nil {
		return err
	}
	var change identity.GroupChange
	for _, o := range operations {
		if err := o.onGroup(&change); err != nil {
			return err
		}
	}

	g, err := s.changeGroup(r, p, change)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", g.ETag())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Service) changeGroup(r *http.Request, p authz.Provisioner, change identity.GroupChange) (g identity.Group,
	err error) {
	id, err := resourceID(r)
	if err != nil {
		return g, err
	}
	return s.identity.ChangeGroup(r.Context(), p, id, r.Header.Get("If-Match"), change)
}

func (s *Service) deleteGroup(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error {
	id, err := resourceID(r)
	if err != nil {
		return err
	}
	if err := s.identity.DeleteGroup(r.Context(), p, id, r.Header.Get("If-Match")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
