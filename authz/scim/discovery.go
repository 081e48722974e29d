package scim

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// config says which parts of SCIM are served.
func (s *Service) config(w http.ResponseWriter, _ *http.Request, _ authz.Provisioner) error {
	supported := func(is bool) map[string]any { return map[string]any{"supported": is} }
	return write(w, http.StatusOK, map[string]any{
		"schemas": []string{"urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"},
		"patch":   supported(true), "sort": supported(false), "etag": supported(true),
		"changePassword": supported(false),
		"bulk":           map[string]any{"supported": false, "maxOperations": 0, "maxPayloadSize": 0},
		"filter":         map[string]any{"supported": true, "maxResults": maxCount},
		"authenticationSchemes": []any{map[string]any{"type": "oauthbearertoken", "name": "Token", "primary": true,
			"description": "A service token of kind scim, as a bearer token"}},
		"meta": map[string]any{"resourceType": "ServiceProviderConfig",
			"location": s.identity.BaseURL + Base + "/ServiceProviderConfig"},
	})
}

// types are the types of resources.
func (s *Service) types() (all []any) {
	for _, one := range []struct{ name, schema string }{{"User", userSchema}, {"Group", groupSchema}} {
		all = append(all, map[string]any{
			"schemas": []string{"urn:ietf:params:scim:schemas:core:2.0:ResourceType"},
			"id":      one.name, "name": one.name, "endpoint": "/" + one.name + "s", "schema": one.schema,
			"meta": map[string]any{"resourceType": "ResourceType", "location": s.location("ResourceTypes", one.name)},
		})
	}
	return all
}

func (s *Service) resourceTypes(w http.ResponseWriter, _ *http.Request, _ authz.Provisioner) error {
	return write(w, http.StatusOK, list(len(s.types()), 0, s.types()))
}

func (s *Service) resourceType(w http.ResponseWriter, r *http.Request, _ authz.Provisioner) error {
	return oneOf(w, r, s.types())
}

// oneOf answers with the item that the path names.
func oneOf(w http.ResponseWriter, r *http.Request, items []any) error {
	for _, item := range items {
		if item.(map[string]any)["id"] == r.PathValue("id") {
			return write(w, http.StatusOK, item)
		}
	}
	return fault.New(fault.NotFound, "there is no %.100q", r.PathValue("id"))
}

// attribute describes an attribute that is kept.
func attribute(name, kind string, more map[string]any) map[string]any {
	a := map[string]any{"name": name, "type": kind, "multiValued": false, "required": false, "caseExact": false,
		"mutability": "readWrite", "returned": "default", "uniqueness": "none"}
	for k, v := range more {
		a[k] = v
	}
	return a
}

// texts describes sub-attributes that are texts.
func texts(more map[string]any, names ...string) (all []any) {
	for _, name := range names {
		all = append(all, attribute(name, "string", more))
	}
	return all
}

// all describes the schemas, with what is kept of them.
func (s *Service) all() []any {
	unique := map[string]any{"required": true, "uniqueness": "server"}
	exact := map[string]any{"caseExact": true}
	fixed := map[string]any{"mutability": "readOnly"}
	schema := func(id, name, description string, attributes ...any) map[string]any {
		return map[string]any{"schemas": []string{"urn:ietf:params:scim:schemas:core:2.0:Schema"},
			"id": id, "name": name, "description": description, "attributes": attributes,
			"meta": map[string]any{"resourceType": "Schema", "location": s.location("Schemas", id)}}
	}

	emails := append(texts(nil, "value", "type", "display"), attribute("primary", "boolean", nil))
	members := append(texts(map[string]any{"mutability": "immutable"}, "value", "type"),
		texts(fixed, "display", "$ref")...)
	return []any{
		schema(userSchema, "User", "User account",
			attribute("userName", "string", unique), attribute("externalId", "string", exact),
			attribute("displayName", "string", nil), attribute("active", "boolean", nil),
			attribute("name", "complex", map[string]any{
				"subAttributes": texts(nil, "formatted", "givenName", "familyName")}),
			attribute("emails", "complex", map[string]any{"multiValued": true, "subAttributes": emails}),
			attribute("groups", "complex", map[string]any{"multiValued": true, "mutability": "readOnly",
				"subAttributes": texts(fixed, "value", "display", "$ref")})),
		schema(groupSchema, "Group", "Group of users",
			attribute("displayName", "string", unique), attribute("externalId", "string", exact),
			attribute("members", "complex", map[string]any{"multiValued": true, "subAttributes": members})),
	}
}

func (s *Service) schemas(w http.ResponseWriter, _ *http.Request, _ authz.Provisioner) error {
	return write(w, http.StatusOK, list(len(s.all()), 0, s.all()))
}

func (s *Service) schema(w http.ResponseWriter, r *http.Request, _ authz.Provisioner) error {
	return oneOf(w, r, s.all())
}
