package scim

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz/identity"
)

// operation is one of a PATCH.
type operation struct {
	op    string // add, replace or remove
	path  *path  // nil: the value names the attributes
	value any
}

// maxOperations is how many operations a PATCH may have.
const maxOperations = 1000

// readPatch reads the operations of a PATCH. One without a path becomes one for each attribute that its value names, as
// some providers name sub-attributes there.
func readPatch(r *http.Request) (all []operation, err error) {
	d, err := readDocument(r)
	if err != nil {
		return nil, err
	}
	list, err := d.objects("Operations")
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > maxOperations {
		return nil, invalid(invalidSyntax, "a PATCH has 1 to %d Operations", maxOperations)
	}

	for _, one := range list {
		read, err := readOperation(one)
		if err != nil {
			return nil, err
		}
		all = append(all, read...)
	}
	return all, nil
}

func readOperation(one document) (all []operation, err error) {
	op, err := one.text("op")
	if err != nil {
		return nil, err
	}
	if op = strings.ToLower(op); op != "add" && op != "replace" && op != "remove" {
		return nil, invalid(invalidSyntax, "%.50q is no operation: use add, replace or remove", op)
	}
	if text, isText := one["path"].(string); isText && text != "" {
		to, err := parsePath(text)
		return []operation{{op, &to, one["value"]}}, err
	}

	if one["path"] != nil && one["path"] != "" {
		return nil, invalid(invalidPath, "a path must be a text")
	}
	if op == "remove" {
		return nil, invalid(noTarget, "to remove something takes a path")
	}
	values, ok := one["value"].(map[string]any)
	if !ok {
		return nil, invalid(invalidValue, "an operation without a path takes an object of attributes")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		to, err := parsePath(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(readOnly, to.attribute) { // of a resource that was read before
			all = append(all, operation{op, &to, values[name]})
		}
	}
	return all, nil
}

// readOnly are the attributes that no request changes.
var readOnly = []string{"id", "meta", "schemas", "groups"}

// onUser makes an operation on the document of a user.
func (o operation) onUser(d document) error {
	at := *o.path
	switch {
	case at.foreign:
		return nil
	case slices.Contains(readOnly, at.attribute):
		return invalid(mutability, "%s cannot be changed", at.attribute)
	case at.attribute == "emails":
		return o.onEmails(d)
	case at.attribute == "active" && (o.op == "remove" || o.value == nil):
		return invalid(invalidValue, "active must be true or false")
	case len(at.filter) > 0:
		return nil // only lists have some values, and dagctl keeps no other list
	case at.attribute == "name":
		return o.onName(d)
	case at.sub != "":
		return nil
	case o.op == "remove":
		delete(d, at.attribute)
	default:
		d[at.attribute] = o.value
	}
	return nil
}

// onName makes an operation on the parts of a name.
func (o operation) onName(d document) error {
	name, err := d.object("name")
	if err != nil {
		return err
	}

	switch {
	case o.path.sub != "" && o.op == "remove":
		delete(name, o.path.sub)
	case o.path.sub != "":
		name[o.path.sub] = o.value
	case o.op == "remove":
		name = document{}
	default:
		parts, ok := o.value.(map[string]any)
		if !ok {
			return invalid(invalidValue, "name is no object")
		}
		maps.Copy(name, parts)
	}
	d["name"] = map[string]any(name)
	return nil
}

// onEmails makes an operation on the list of e-mail addresses.
func (o operation) onEmails(d document) error {
	emails, err := d.objects("emails")
	if err != nil {
		return err
	}
	given := []document{}
	if o.value != nil && o.path.sub == "" {
		if given, err = (document{"emails": o.value}).objects("emails"); err != nil {
			return err
		}
		for i, one := range given {
			given[i] = maps.Clone(one) // the operation may be made again, in another transaction
		}
	}

	switch {
	case len(o.path.filter) > 0 || o.path.sub != "":
		emails, err = o.onSome(emails, given)
	case o.op == "add":
		emails = merged(emails, given)
	case o.op == "replace":
		emails = given
	case len(given) > 0: // some providers name in the value what to remove
		emails = slices.DeleteFunc(emails, func(e document) bool {
			return slices.ContainsFunc(given, func(gone document) bool { return sameEmail(e, gone) })
		})
	default:
		emails = nil
	}
	if err != nil {
		return err
	}

	list := make([]any, len(emails))
	for i, e := range emails {
		list[i] = map[string]any(e)
	}
	d["emails"] = list
	return nil
}

// onSome makes an operation on the e-mail addresses that the path chooses. Where there is none of the type that it
// names, there is one then: providers replace what they have never added.
func (o operation) onSome(emails, given []document) ([]document, error) {
	chosen := func(e document) bool { return matches(e, o.path.filter) }
	if o.op == "remove" && (o.path.sub == "" || o.path.sub == "value") {
		return slices.DeleteFunc(emails, chosen), nil
	}
	if !slices.ContainsFunc(emails, chosen) {
		if o.op == "remove" {
			return emails, nil
		}
		made := document{}
		for _, c := range o.path.filter {
			made[c.path.attribute] = c.value
		}
		emails = append(emails, made)
	}

	for _, e := range emails {
		switch {
		case !chosen(e):
		case o.path.sub != "" && o.op == "remove":
			delete(e, o.path.sub)
		case o.path.sub != "":
			e[o.path.sub] = o.value
		case len(given) != 1:
			return nil, invalid(invalidValue, "the operation takes one e-mail address as an object")
		default:
			maps.Copy(e, given[0])
		}
	}
	return emails, nil
}

// merged returns addresses with further ones. Only one stays primary: the newest that is.
func merged(emails, more []document) []document {
	for _, one := range more {
		if primary, err := truth(one["primary"]); err == nil && primary {
			for _, e := range emails {
				delete(e, "primary")
			}
		}
		if i := slices.IndexFunc(emails, func(e document) bool { return sameEmail(e, one) }); i >= 0 {
			maps.Copy(emails[i], one)
			continue
		}
		emails = append(emails, one)
	}
	return emails
}

// sameEmail reports whether two are one address, of one type if both have one.
func sameEmail(a, b document) bool {
	value, _ := a["value"].(string)
	other, _ := b["value"].(string)
	kind, typed := a["type"].(string)
	otherKind, otherTyped := b["type"].(string)
	return strings.EqualFold(value, other) && (!typed || !otherTyped || strings.EqualFold(kind, otherKind))
}

// onGroup adds an operation to the change of a group.
func (o operation) onGroup(c *identity.GroupChange) error {
	at := *o.path
	switch {
	case at.foreign:
		return nil
	case slices.Contains(readOnly, at.attribute) && at.attribute != "groups":
		return invalid(mutability, "%s cannot be changed", at.attribute)
	case at.attribute == "members":
		return o.onMembers(c)
	case at.sub != "" || len(at.filter) > 0:
		return nil
	case at.attribute == "displayname":
		name, err := document{"displayname": o.kept()}.required("displayName")
		c.Name = &name
		return err
	case at.attribute == "externalid":
		id, err := document{"externalid": o.kept()}.text("externalId")
		c.ExternalID = &id
		return err
	}
	return nil
}

// kept is the value after an operation on an attribute with one value.
func (o operation) kept() any {
	if o.op == "remove" {
		return nil
	}
	return o.value
}

// onMembers adds an operation on members to the change of a group.
func (o operation) onMembers(c *identity.GroupChange) error {
	m := identity.MemberChange{Remove: o.op == "remove", Clear: o.op == "replace"}
	if len(o.path.filter) > 0 {
		named := o.path.filter[0]
		if !m.Remove || len(o.path.filter) > 1 || named.path.attribute != "value" {
			return invalid(invalidPath, `members can be chosen by [value eq "ID"] to remove them, and not otherwise`)
		}
		o.value = []any{map[string]any{"value": named.value}}
	} else if o.path.sub != "" && o.path.sub != "value" {
		return invalid(mutability, "members.%s cannot be changed", o.path.sub)
	}

	if m.Remove && o.value == nil {
		m.Clear = true
	}
	users, err := membersOf(o.value)
	m.Users = users
	c.Members = append(c.Members, m)
	return err
}

// membersOf reads the users in a list of members.
func membersOf(value any) (users []uuid.UUID, err error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case []any:
		for _, element := range v {
			more, err := membersOf(element)
			if err != nil {
				return nil, err
			}
			users = append(users, more...)
		}
		return users, nil
	case map[string]any:
		if v["value"] == nil {
			return nil, invalid(invalidValue, "a member has no value")
		}
		if _, nested := v["value"].(string); nested {
			return membersOf(v["value"])
		}
	case string:
		if id, err := uuid.Parse(v); err == nil {
			return []uuid.UUID{id}, nil
		}
		return nil, invalid(invalidValue, "there is no user %.100q to be a member", v)
	}
	return nil, invalid(invalidValue, "members are objects with the id of a user as value")
}
