package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// loginWaits is how long `dagctl login` waits for the browser.
const loginWaits = 10 * time.Minute

// LoginCommand returns `dagctl login`.
func LoginCommand(c *cli.CLI) *cobra.Command {
	var (
		device, noBrowser bool
		org, name         string
	)
	cmd := &cobra.Command{
		Use:   "login [URL]",
		Short: "Sign in to a server with a browser",
		Long: `Signs in to the server at URL, or to the target. A browser on this machine opens, in which you sign in as on
the pages of the server and allow the command line to act for you. On a machine without one, --device shows a code to
type in a browser elsewhere. The session is kept with the target, in a file that only you can read; it ends when it has
not been used for half a day, and after a week,
	unless the server's config says otherwise. dagctl logout ends it at once.

Programs do not sign in: they have a service token, or the token of an issuer that the org trusts, in DAGCTL_TOKEN.`,
		Example: `  dagctl login https://dagctl.example.com
  dagctl login --org acme
  dagctl login --device`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := loginTarget(c, args, name)
			if err != nil {
				return err
			}
			if err := c.KeepTarget(before); err != nil { // before a person signs in for nothing
				return err
			}
			target := before
			target.Token = ""
			ctx, cancel := context.WithTimeout(cmd.Context(), loginWaits)
			defer cancel()
			if device {
				target.Token, err = loginByDevice(ctx, c, target, org)
			} else {
				target.Token, err = loginByBrowser(ctx, c, target, org, noBrowser)
			}
			if err != nil {
				return err
			}

			if err := c.KeepTarget(target); err != nil {
				return err
			}
			if isSession(before.Token) {
				// It may have ended by itself; what remains of it ends after a week without use.
				_ = signOut(cmd.Context(), before, false)
			}
			var me authz.Identity
			if err := cli.NewClient(target).Get(cmd.Context(), "/v1/whoami", nil, &me); err != nil {
				return err
			}
			return c.Print(me, func(w io.Writer) {
				fmt.Fprintf(w, "%s, %s of %s, at %s\n", nameOf(me), roleText(me.Role, me.Grants), me.Org, target.URL)
				if c.Getenv("DAGCTL_TOKEN") != "" {
					fmt.Fprintln(c.Err, "DAGCTL_TOKEN is set, and wins over this session: unset it.")
				}
			})
		},
	}

	f := cmd.Flags()
	f.BoolVar(&device, "device", false, "show a code to type in a browser on another machine")
	f.BoolVar(&noBrowser, "no-browser", false, "print the address instead of opening a browser")
	f.StringVar(&org, "org", "", "org to work in (default: the one used last)")
	f.StringVar(&name, "name", "", "name of the target (default: the one that has the URL, or the host)")
	return cmd
}

// nameOf names a caller for people.
func nameOf(me authz.Identity) string {
	if me.Name != "" {
		return me.Name
	}
	return me.Actor
}

// isSession reports whether a token is that of a session, which ends with it.
func isSession(token string) bool { return strings.HasPrefix(token, "dagctl_session_") }

// signOut ends the session of a target, or all of its user.
func signOut(ctx context.Context, t cli.Target, everywhere bool) error {
	return cli.NewClient(t).Post(ctx, "/v1/auth/sign-out", map[string]bool{"everywhere": everywhere}, nil)
}

// loginTarget returns the target to sign in to, with the token that it has.
func loginTarget(c *cli.CLI, args []string, name string) (cli.Target, error) {
	if len(args) > 0 {
		return c.TargetFor(args[0], name)
	}
	t, err := c.ResolveTarget()
	if err != nil {
		return cli.Target{}, err
	}
	if t.Name == "dev" {
		return cli.Target{}, fault.New(fault.Conflict, "the dev server has signed you in already")
	}
	return c.TargetFor(t.URL, name)
}

// loginByBrowser opens a page on which a person lets this command in, and gets the session for the code that the page
// brings back.
func loginByBrowser(ctx context.Context, c *cli.CLI, t cli.Target, org string, noBrowser bool) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen for the browser: %w", err)
	}
	state, verifier := randomText(), randomText()
	sum := sha256.Sum256([]byte(verifier))
	back := make(chan string, 1)
	server := &http.Server{Handler: awaitCode(state, back), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // it ends with Close
	defer server.Close()

	query := url.Values{"port": {portOf(listener)}, "state": {state}, "client": {machine()},
		"challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}
	if org != "" {
		query.Set("org", org)
	}
	address := t.URL + "/signin/cli?" + query.Encode()
	fmt.Fprintf(c.Err, "Sign in at %s\n", address)
	if !noBrowser && !openBrowser(ctx, c, address) {
		fmt.Fprintln(c.Err, "No browser opens here: copy the address, or use --device.")
	}

	select {
	case code := <-back:
		return redeem(ctx, t, code, verifier)
	case <-ctx.Done():
		return "", waitedTooLong(ctx)
	}
}

func portOf(listener net.Listener) string {
	_, port, _ := net.SplitHostPort(listener.Addr().String()) // its own form
	return port
}

// awaitCode answers the browser that comes back, and passes its code on. Other requests to the port get nothing.
func awaitCode(state string, back chan<- string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := r.URL.Query().Get("code")
		if r.Method != http.MethodGet || r.URL.Path != "/" || r.URL.Query().Get("state") != state || code == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		fmt.Fprintln(w, "The command line is signed in. You can close this page.")
		select {
		case back <- code:
		default: // the page was loaded again
		}
	})
}

// loginByDevice shows a code, and asks until a person has typed it.
func loginByDevice(ctx context.Context, c *cli.CLI, t cli.Target, org string) (string, error) {
	if org != "" {
		return "", fault.New(fault.Invalid, "--org goes with a browser on this machine").
			WithHint("with --device, switch to the org on the page /account before you type the code")
	}
	var d identity.Device
	err := cli.NewClient(t).Post(ctx, "/v1/auth/device", map[string]string{"client": machine()}, &d)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(c.Err, "Open %s and type the code %s\n", d.URL, d.UserCode)

	for {
		if err := cli.Sleep(ctx, time.Duration(max(d.Interval, 1))*time.Second); err != nil {
			return "", waitedTooLong(ctx)
		}
		token, err := redeem(ctx, t, d.DeviceCode, "")
		if token != "" || err != nil && !fault.Is(err, fault.TooMany) && !fault.Is(err, fault.Unavailable) {
			return token, err
		}
	}
}

// redeem returns the session for a code, or an empty text while nobody has decided.
func redeem(ctx context.Context, t cli.Target, code, verifier string) (string, error) {
	var answer identity.Waiting
	err := cli.NewClient(t).Post(ctx, "/v1/auth/token", map[string]string{"code": code, "verifier": verifier}, &answer)
	if err == nil && answer.Status == "denied" {
		err = fault.New(fault.Forbidden, "the sign-in was refused in the browser")
	}
	return answer.Token, err
}

func waitedTooLong(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fault.New(fault.Unavailable, "nobody signed in within %s", loginWaits).WithHint("run `dagctl login` again")
}

func randomText() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// machine is what this machine calls itself.
func machine() string {
	host, err := os.Hostname()
	if err != nil {
		return runtime.GOOS
	}
	return host
}

// openBrowser opens an address, by the program that BROWSER names or the system's own. It reports whether one started.
func openBrowser(ctx context.Context, c *cli.CLI, address string) bool {
	program := []string{"xdg-open"}
	switch {
	case c.Getenv("BROWSER") != "":
		program = strings.Fields(c.Getenv("BROWSER"))
	case runtime.GOOS == "darwin":
		program = []string{"open"}
	case runtime.GOOS == "windows":
		program = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program[0], append(program[1:], address)...)
	if cmd.Start() != nil {
		return false
	}
	go func() { _ = cmd.Wait() }() // a browser may outlive this command
	return true
}

// LogoutCommand returns `dagctl logout`.
func LogoutCommand(c *cli.CLI) *cobra.Command {
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "End the session of the target, and forget it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := c.ResolveTarget()
			if err != nil {
				return err
			}
			if !isSession(target.Token) {
				return fault.New(fault.Conflict, "target %s has no session to end", target.Name).
					WithHint("a service token is revoked by `dagctl tokens revoke`")
			}
			err = signOut(cmd.Context(), target, everywhere)
			if err != nil && !fault.Is(err, fault.Unauthenticated) { // it may have ended by itself
				return err
			}

			target.Token = ""
			if err := c.KeepTarget(target); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "Signed out of %s.\n", target.URL)
			return nil
		},
	}
	cmd.Flags().BoolVar(&everywhere, "everywhere", false, "end all of your sessions, browsers included")
	return cmd
}
