package testoidc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/dagctl/dagctl/internal/testserver"
)

// DexOptions are what a dex knows.
type DexOptions struct {
	Users   []DexUser
	Clients []Client // redirect URIs hold as they are; a public client without any may use all of http://localhost
}

// DexUser signs in with an address and a password. dex calls every address verified, and gives no groups.
type DexUser struct {
	ID    string // the subject is made of it
	Email string
	Name  string
}

// The password of all users, and its hash: dex refuses hashes that are cheaper to make.
const (
	dexPassword = "password"
	dexHash     = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"
)

// Dex is a running dex. PKCE is possible, and a refresh token needs the scope offline_access.
type Dex struct {
	Issuer string // http://127.0.0.1:port/dex
}

// StartDex starts a dex that ends with the test. The first one on a machine takes a minute or two, to build it.
func StartDex(t testing.TB, o DexOptions) *Dex {
	t.Helper()
	binary, err := testserver.Build("dex", "github.com/dexidp/dex/cmd/dex")
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	p := testserver.NewProcess(t, binary, "/dex/healthz", filepath.Join(dir, "log"))
	err = p.Begin(t.Context(), func(address string) ([]string, error) {
		text, err := json.Marshal(o.config(address))
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "config.json")
		return []string{"serve", file}, os.WriteFile(file, text, 0o600)
	})
	if err != nil {
		t.Fatalf("start dex: %v", err)
	}
	return &Dex{Issuer: p.URL() + "/dex"}
}

// config returns dex's configuration, whose YAML may be JSON.
func (o DexOptions) config(address string) map[string]any {
	users, clients := []map[string]any{}, []map[string]any{}
	for _, u := range o.Users {
		users = append(users, map[string]any{"email": u.Email, "username": u.Name, "userID": u.ID, "hash": dexHash})
	}
	for _, c := range o.Clients {
		clients = append(clients, map[string]any{"id": c.ID, "name": c.ID, "secret": c.Secret,
			"public": c.Secret == "", "redirectURIs": c.RedirectURIs})
	}

	return map[string]any{
		"issuer":           "http://" + address + "/dex",
		"storage":          map[string]any{"type": "memory"},
		"web":              map[string]any{"http": address},
		"enablePasswordDB": true,
		"staticPasswords":  users,
		"staticClients":    clients,
	}
}

// SignIn does what SignIn of Provider does, for the user with an address.
func (d *Dex) SignIn(t testing.TB, authURL, email string) (callbackURL string) {
	t.Helper()
	return signIn(t, d.Issuer, authURL, email, dexPassword)
}
