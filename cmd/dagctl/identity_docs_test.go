package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/testoidc"
)

// TestTheCommandsOfIdentityWork runs the commands of docs/identity.md and docs/scim.md as an admin.
func TestTheCommandsOfIdentityWork(t *testing.T) {
	t.Parallel()
	var text []byte
	for _, page := range []string{"identity.md", "scim.md"} {
		of, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		text = append(text, of...)
	}
	okta := testoidc.Start(t, testoidc.Options{})
	w := newWorld(t, withProvider(t, okta), func(cfg *server.Config) { cfg.Identity.Providers[0].Name = "okta" })

	ran := 0
	word := regexp.MustCompile(`'[^']*'|\S+`)
	blocks := regexp.MustCompile("(?s)```console access\n(.*?)```")
	for _, block := range blocks.FindAllStringSubmatch(string(text), -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			command, ok := strings.CutPrefix(line, "$ dagctl ")
			require.True(t, ok, line)
			args := word.FindAllString(command, -1)
			for i := range args {
				args[i] = strings.ReplaceAll(strings.Trim(args[i], "'"), "https://acme.okta.com", okta.Issuer)
			}
			must(t, w.env(t, admin), args...)
			ran++
		}
	}
	require.Greater(t, ran, 15)
}
