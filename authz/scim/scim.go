// Package scim lets identity providers such as Okta, Entra ID and Keycloak keep the users and groups of an org, by SCIM
// 2.0 (RFC 7643 and 7644). It knows the form of requests and answers; package identity has what they mean.
//
// Vocabulary: a resource is a user or a group as SCIM writes it. A document is a resource, or what is to become one, as
// decoded JSON. A path names an attribute of a document, or some values of it; the names of attributes have no case.
// What dagctl does not keep of a resource it ignores. It owns no tables.
package scim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/fault"
)

// Base is the path below which SCIM is served.
const Base = "/scim/v2"

// The names of schemas.
const (
	userSchema  = "urn:ietf:params:scim:schemas:core:2.0:User"
	groupSchema = "urn:ietf:params:scim:schemas:core:2.0:Group"
	listSchema  = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
	errorSchema = "urn:ietf:params:scim:api:messages:2.0:Error"
)

// How many items an answer has.
const (
	defaultCount = 100
	maxCount     = 200
	// maxGroups is how many groups an answer has with their members.
	maxGroups = 25
)

// Service answers identity providers.
type Service struct {
	identity *identity.Identity
}

// New returns a service for the users of an Identity.
func New(id *identity.Identity) *Service { return &Service{id} }

// AddRoutes adds the routes of SCIM to an API.
func (s *Service) AddRoutes(api *authz.API) {
	add := func(pattern string, h handler) { api.HandleProvisioner(pattern, h, fail) }
	add("GET "+Base+"/Users", s.listUsers)
	add("POST "+Base+"/Users", s.createUser)
	add("GET "+Base+"/Users/{id}", s.getUser)
	add("PUT "+Base+"/Users/{id}", s.putUser)
	add("PATCH "+Base+"/Users/{id}", s.patchUser)
	add("DELETE "+Base+"/Users/{id}", s.deleteUser)

	add("GET "+Base+"/Groups", s.listGroups)
	add("POST "+Base+"/Groups", s.createGroup)
	add("GET "+Base+"/Groups/{id}", s.getGroup)
	add("PUT "+Base+"/Groups/{id}", s.putGroup)
	add("PATCH "+Base+"/Groups/{id}", s.patchGroup)
	add("DELETE "+Base+"/Groups/{id}", s.deleteGroup)

	add("GET "+Base+"/ServiceProviderConfig", s.config)
	add("GET "+Base+"/ResourceTypes", s.resourceTypes)
	add("GET "+Base+"/ResourceTypes/{id}", s.resourceType)
	add("GET "+Base+"/Schemas", s.schemas)
	add("GET "+Base+"/Schemas/{id}", s.schema)
	add(Base+"/{path...}", s.nothing)
}

// handler answers a request of an identity provider.
type handler = func(w http.ResponseWriter, r *http.Request, p authz.Provisioner) error

// nothing answers what no other route takes.
func (s *Service) nothing(_ http.ResponseWriter, r *http.Request, _ authz.Provisioner) error {
	return fault.New(fault.NotFound, "%s %s: SCIM has no such endpoint here", r.Method, r.URL.Path)
}

// location returns the address of a resource.
func (s *Service) location(kind string, id string) string {
	return s.identity.BaseURL + Base + "/" + kind + "/" + id
}

// resourceID returns the id in the path of a request.
func resourceID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil, fault.New(fault.NotFound, "there is no resource %.100q", r.PathValue("id"))
	}
	return id, nil
}

// send writes an answer. One with a version gets it as its ETag, too.
func send(w http.ResponseWriter, r *http.Request, status int, body map[string]any) error {
	meta, _ := body["meta"].(map[string]any)
	if version, ok := meta["version"].(string); ok {
		w.Header().Set("ETag", version)
		if r.Method == http.MethodGet && r.Header.Get("If-None-Match") == version {
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	if location, ok := meta["location"].(string); ok && status == http.StatusCreated {
		w.Header().Set("Location", location)
	}
	return write(w, status, body)
}

// write writes JSON. It cannot fail on what this package makes; a client that is gone gets nothing.
func write(w http.ResponseWriter, status int, body any) error {
	w.Header().Set("Content-Type", "application/scim+json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body)
	return nil
}

// list is a page of an answer.
func list(total, skip int, items []any) map[string]any {
	return map[string]any{"schemas": []string{listSchema}, "totalResults": total, "startIndex": skip + 1,
		"itemsPerPage": len(items), "Resources": items}
}

// windowOf returns the part of a list that a request asks for.
func windowOf(r *http.Request, most int) (w identity.Window, err error) {
	w.Count = defaultCount
	query := r.URL.Query()
	for name, into := range map[string]*int{"startIndex": &w.Skip, "count": &w.Count} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		if *into, err = strconv.Atoi(text); err != nil {
			return w, invalid(invalidValue, "%s is %.50q, but must be a whole number", name, text)
		}
	}
	w.Skip, w.Count = max(0, w.Skip-1), max(0, min(w.Count, most))
	return w, nil
}

// selection says which attributes of a resource an answer has, by their names in lower case.
type selection struct{ only, without map[string]bool }

func selectionOf(r *http.Request) (s selection) {
	query := r.URL.Query()
	return selection{namesIn(query.Get("attributes")), namesIn(query.Get("excludedAttributes"))}
}

// namesIn returns the attributes in a list with commas. Sub-attributes count as the whole.
func namesIn(text string) map[string]bool {
	names := map[string]bool{}
	for name := range strings.SplitSeq(text, ",") {
		if path, err := parsePath(strings.TrimSpace(name)); err == nil {
			names[path.attribute] = true
		}
	}
	return names
}

// has reports whether an answer has an attribute.
func (s selection) has(name string) bool {
	name = strings.ToLower(name)
	if name == "id" || name == "schemas" || name == "meta" {
		return true
	}
	return !s.without[name] && (len(s.only) == 0 || s.only[name])
}

// of returns a resource with the attributes that are chosen.
func (s selection) of(resource map[string]any) map[string]any {
	for name := range resource {
		if !s.has(name) {
			delete(resource, name)
		}
	}
	return resource
}
