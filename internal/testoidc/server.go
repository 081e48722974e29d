package testoidc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/testserver"
)

// server is the process of tools/oidc-provider, which serves what it was last told to.
type server struct {
	port int

	mu      sync.Mutex
	config  config // what it serves
	in      io.Writer
	answers *bufio.Reader
}

// config is what a server serves.
type config struct {
	keys      []jose.JSONWebKey // the first one signs
	users     []User
	clients   []Client
	lifetimes lifetimes
}

// lifetimes are in seconds, by oidc-provider's names of kinds of tokens.
type lifetimes struct {
	ID        int `json:"IdToken"`
	Access    int `json:"AccessToken"`
	Workloads int `json:"ClientCredentials"`
	Refresh   int `json:"RefreshToken"`
}

func seconds(d time.Duration) int { return int(d / time.Second) }

// startServer returns a server that listens. It ends with the test.
func startServer(t testing.TB, c config) (*server, error) {
	cmd, life, err := testserver.Node("oidc-provider")
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	said := &bytes.Buffer{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		_ = life.Close()
		_ = cmd.Wait() // its output is what tells
		if t.Failed() {
			t.Logf("the OpenID provider said: %s", said)
		}
	})

	s := &server{config: c, in: life, answers: bufio.NewReader(out)}
	const tries = 5 // a port that is free now may be taken when the server listens
	for range tries {
		if s.port, err = freeport.Find(); err != nil {
			return nil, err
		}
		if err = s.change(func(*config) {}); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func (s *server) url() string { return fmt.Sprintf("http://127.0.0.1:%d", s.port) }

// now returns what the server serves.
func (s *server) now() config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// change returns when the server serves the changed configuration. What change keeps of the old one, it must not write
// to.
func (s *server) change(change func(c *config)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.config
	next.keys, next.users, next.clients = slices.Clone(next.keys), slices.Clone(next.users), slices.Clone(next.clients)
	change(&next)

	users, clients := []map[string]any{}, []map[string]any{}
	for _, u := range next.users {
		users = append(users, u.claims())
	}
	for _, c := range next.clients {
		clients = append(clients, c.metadata())
	}
	err := s.send(map[string]any{"serve": map[string]any{"port": s.port, "keys": next.keys, "users": users,
		"clients": clients, "lifetimes": next.lifetimes}})
	if err == nil {
		s.config = next
	}
	return err
}

// tell sends a command and waits until it is done.
func (s *server) tell(command any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.send(command)
}

func (s *server) send(command any) error {
	line, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}

	answer, err := s.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}
	var wrong string
	if err := json.Unmarshal(answer, &wrong); err != nil {
		return fmt.Errorf("it said %q: %w", answer, err)
	}
	if wrong != "" {
		return errors.New(wrong)
	}
	return nil
}

// claims returns all that the provider says of the user.
func (u User) claims() map[string]any {
	all := map[string]any{}
	maps.Copy(all, u.Claims)
	all["sub"] = u.Subject
	if u.Email != "" {
		all["email"], all["email_verified"] = u.Email, u.EmailVerified
	}
	if u.Name != "" {
		all["name"] = u.Name
	}
	if u.Groups != nil {
		all["groups"] = u.Groups
	}
	return all
}

// metadata returns the client in the terms of OpenID Connect Dynamic Client Registration.
func (c Client) metadata() map[string]any {
	m := map[string]any{"client_id": c.ID, "redirect_uris": []string{}, "response_types": []string{}}
	grants := []string{"refresh_token", "urn:ietf:params:oauth:grant-type:device_code"}
	if len(c.RedirectURIs) > 0 {
		m["redirect_uris"], m["response_types"] = c.RedirectURIs, []string{"code"}
		grants = append(grants, "authorization_code")
	}

	if c.Secret == "" {
		m["token_endpoint_auth_method"], m["application_type"] = "none", "native"
	} else {
		m["client_secret"], m["token_endpoint_auth_method"] = c.Secret, "client_secret_basic"
		grants = append(grants, "client_credentials")
	}
	m["grant_types"] = grants
	return m
}
