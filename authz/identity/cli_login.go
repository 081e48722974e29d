package identity

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// The command line signs in through a browser. One on the same machine carries a code back to the port at which the
// command line listens, and the code is worth a session only with the verifier that the command line kept (PKCE). One
// on another machine is told the code that the command line shows, which asks in the meantime (RFC 8628).

// Device is what the command line shows and keeps while a person signs in on another machine.
type Device struct {
	DeviceCode string `json:"device_code" doc:"Ask for the token with it"`
	UserCode   string `json:"user_code" example:"BCDF-GHJK" doc:"What the person types"`
	URL        string `json:"verification_uri"`
	Complete   string `json:"verification_uri_complete" doc:"The same with the code in it"`
	ExpiresIn  int    `json:"expires_in" doc:"Seconds"`
	Interval   int    `json:"interval" doc:"Seconds between two questions at least"`
}

// Waiting says how a sign-in of the command line stands.
type Waiting struct {
	Status string `json:"status" enum:"pending,denied,done"`
	Token  string `json:"token,omitempty" doc:"Of the session, when done"`
}

// How long the command line waits for a browser, and how often it may ask.
const (
	deviceLasts    = 10 * time.Minute
	codeLasts      = 2 * time.Minute
	deviceInterval = 2 * time.Second
)

// userCodeLetters are easy to read and spell no words.
const userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"

func newUserCode() string {
	var code strings.Builder
	for code.Len() < 9 {
		if code.Len() == 4 {
			code.WriteByte('-')
		}
		var b [1]byte
		_, _ = rand.Read(b[:]) // never fails
		if n := len(userCodeLetters); int(b[0]) < 256/n*n {
			code.WriteByte(userCodeLetters[int(b[0])%n])
		}
	}
	return code.String()
}

// normalCode returns a user code as it is stored, however a person writes it.
func normalCode(text string) string {
	text = strings.Map(func(r rune) rune {
		if strings.ContainsRune(userCodeLetters, r) {
			return r
		}
		return -1
	}, strings.ToUpper(text))
	if len(text) != 8 {
		return ""
	}
	return text[:4] + "-" + text[4:]
}

// startDevice begins a sign-in on another machine.
func (id *Identity) startDevice(ctx context.Context, client string) (Device, error) {
	if id.BaseURL == "" {
		return Device{}, fault.New(fault.Conflict, "nobody can sign in at this server: it has no base_url").
			WithHint("use a token: `dagctl target add --token-file`")
	}
	key, err := uuid.NewV7()
	if err != nil {
		return Device{}, err
	}

	secret, code := authz.NewSecret("device"), newUserCode()
	_, err = id.Owner.Exec(ctx, `
		INSERT INTO cli_logins (id, hash, user_code, client, expires_at) VALUES ($1, $2, $3, $4, now() + $5::interval)`,
		key, authz.HashSecret(secret), code, short(client), deviceLasts)
	if err != nil {
		return Device{}, fmt.Errorf("begin a sign-in: %w", err)
	}
	page := id.BaseURL + "/signin/device"
	return Device{DeviceCode: secret, UserCode: code, URL: page,
		Complete:  page + "?" + url.Values{"code": {code}}.Encode(),
		ExpiresIn: int(deviceLasts / time.Second), Interval: int(deviceInterval / time.Second)}, nil
}

// redeem returns the session of a sign-in that a browser has approved, once. The code is of a device, or came from the
// browser and needs the verifier.
func (id *Identity) redeem(ctx context.Context, code, verifier string) (answer Waiting, err error) {
	err = pg.InTx(ctx, id.Owner, func(ctx context.Context, tx pgx.Tx) error {
		answer, err = id.redeemIn(ctx, tx, code, verifier)
		return err
	})
	return answer, err
}

func (id *Identity) redeemIn(ctx context.Context, tx pgx.Tx, code, verifier string) (Waiting, error) {
	var (
		login     uuid.UUID
		challenge []byte
		session   *uuid.UUID
		denied    bool
		tooSoon   bool
		client    string
	)

	err := tx.QueryRow(ctx, `
		WITH login AS (
			SELECT id, challenge, session_id, denied, coalesce(polled_at > now() - $2::interval, false) AS too_soon,
				client
			FROM cli_logins WHERE hash = $1 AND expires_at > now() FOR UPDATE
		), asked AS (
			UPDATE cli_logins c SET polled_at = now() FROM login WHERE c.id = login.id
		)
		SELECT * FROM login`, authz.HashSecret(code), deviceInterval*9/10).
		Scan(&login, &challenge, &session, &denied, &tooSoon, &client)
	switch {
	case errNoRows(err):
		return Waiting{}, fault.New(fault.Invalid, "the code is not valid, was used, or has expired").
			WithHint("run `dagctl login` again")
	case err != nil:
		return Waiting{}, fmt.Errorf("find sign-in: %w", err)
	case challenge != nil && string(challengeOf(verifier)) != string(challenge):
		return Waiting{}, fault.New(fault.Invalid, "the code belongs to another sign-in").
			WithHint("run `dagctl login` again")
	case denied:
		return Waiting{Status: "denied"}, nil
	case session == nil && tooSoon:
		return Waiting{}, fault.New(fault.TooMany, "asked too soon").WithHint("ask every %s", deviceInterval)
	case session == nil:
		return Waiting{Status: "pending"}, nil
	}

	if _, err := tx.Exec(ctx, `DELETE FROM cli_logins WHERE id = $1`, login); err != nil {
		return Waiting{}, fmt.Errorf("end sign-in: %w", err)
	}
	at, err := placeOf(ctx, tx, *session)
	if err != nil {
		return Waiting{}, err
	}
	token, err := id.open(ctx, tx, at, CommandLine, client)
	return Waiting{Status: "done", Token: token}, err
}

// placeOf returns the place of a browser's session, which must still be good.
func placeOf(ctx context.Context, tx pgx.Tx, session uuid.UUID) (at place, err error) {
	err = tx.QueryRow(ctx, `
		SELECT o.id, o.slug, u.id
		FROM sessions s JOIN users u ON u.id = s.user_id JOIN orgs o ON o.id = s.org_id
		WHERE s.id = $1 AND s.revoked_at IS NULL AND s.expires_at > now() AND u.disabled_at IS NULL`, session).
		Scan(&at.org.ID, &at.org.Slug, &at.user)
	if errNoRows(err) {
		return place{}, over()
	}
	return at, err
}

// maxPort and the form of a challenge bound what the address of the page may hold.
const maxPort = 65535

// cliPage asks a person whether a program on the same machine may act for them.
func (id *Identity) cliPage(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	if _, err := userID(caller); err != nil {
		return err
	}
	query := r.URL.Query()
	if org := query.Get("org"); org != "" && org != caller.OrgSlug {
		return id.switchOrg(w, r, org)
	}
	port, _, err := cliAddress(query)
	if err != nil {
		return err
	}
	return id.render(w, caller, "cli.html", "Sign in the command line", map[string]any{"Port": port,
		"Challenge": query.Get("challenge"), "State": query.Get("state"), "Client": short(query.Get("client"))})
}

// switchOrg signs the browser in once more, to another org of the same person.
func (id *Identity) switchOrg(w http.ResponseWriter, r *http.Request, org string) error {
	query := r.URL.Query()
	if query.Get("switched") != "" {
		return fault.New(fault.Forbidden, "you are not in the org %s", org)
	}
	query.Set("switched", "1")
	next := r.URL.Path + "?" + query.Encode()
	http.Redirect(w, r, SignInPath+"?"+url.Values{"next": {next}, "org": {org}}.Encode(), http.StatusSeeOther)
	return nil
}

// cliAddress reads where the command line listens, and the challenge whose verifier it has.
func cliAddress(values url.Values) (port int, challenge []byte, err error) {
	port, err = strconv.Atoi(values.Get("port"))
	if err == nil {
		challenge, err = base64.RawURLEncoding.DecodeString(values.Get("challenge"))
	}
	if err != nil || port < 1 || port > maxPort || len(challenge) != len(challengeOf("")) {
		return 0, nil, fault.New(fault.Invalid, "this address is not one that `dagctl login` opens").
			WithHint("run `dagctl login` again")
	}
	return port, challenge, nil
}

// approveCLI sends the browser to the command line with a code.
func (id *Identity) approveCLI(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	if err := r.ParseForm(); err != nil {
		return fault.New(fault.Invalid, "the form cannot be read: %w", err)
	}
	port, challenge, err := cliAddress(r.PostForm)
	if err != nil {
		return err
	}
	key, err := uuid.NewV7()
	if err != nil {
		return err
	}

	code := authz.NewSecret("code")
	tag, err := id.Owner.Exec(r.Context(), `
		INSERT INTO cli_logins (id, hash, challenge, client, session_id, expires_at)
		SELECT $1, $2, $3, $4, s.id, now() + $5::interval FROM sessions s WHERE s.hash = $6 AND s.org_id = $7`,
		key, authz.HashSecret(code), challenge, short(r.PostForm.Get("client")), codeLasts, id.hashOf(r), caller.OrgID)
	if err != nil {
		return fmt.Errorf("approve a sign-in: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return onlyBrowsers()
	}
	back := url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(port), Path: "/",
		RawQuery: url.Values{"code": {code}, "state": {r.PostForm.Get("state")}}.Encode()}
	return id.render(w, caller, "cli_done.html", "Signed in", map[string]any{"Back": back.String()})
}

func onlyBrowsers() error {
	return fault.New(fault.Conflict, "only somebody who is signed in with a browser can let a program in")
}

// devicePage asks for the code that the command line shows.
func (id *Identity) devicePage(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	if _, err := userID(caller); err != nil {
		return err
	}
	code := normalCode(r.URL.Query().Get("code"))
	client := ""
	if code != "" {
		err := id.Owner.QueryRow(r.Context(), `
			SELECT client FROM cli_logins WHERE user_code = $1 AND expires_at > now() AND session_id IS NULL`, code).
			Scan(&client)
		if err != nil && !errNoRows(err) {
			return fmt.Errorf("find sign-in: %w", err)
		}
	}
	return id.render(w, caller, "device.html", "Sign in a device", map[string]any{"Code": code, "Client": client})
}

// approveDevice lets in, or refuses, the command line that shows a code.
func (id *Identity) approveDevice(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	deny := r.PostFormValue("deny") != ""
	tag, err := id.Owner.Exec(r.Context(), `
		UPDATE cli_logins c SET session_id = CASE WHEN $4 THEN NULL ELSE s.id END, denied = $4
		FROM sessions s
		WHERE c.user_code = $1 AND c.expires_at > now() AND c.session_id IS NULL AND NOT c.denied
		  AND s.hash = $2 AND s.org_id = $3`,
		normalCode(r.PostFormValue("code")), id.hashOf(r), caller.OrgID, deny)
	if err != nil {
		return fmt.Errorf("approve a sign-in: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "no device shows the code %q, or it has expired",
			short(r.PostFormValue("code"))).
			WithHint("look again at what `dagctl login --device` says, or run it again")
	}
	return id.render(w, caller, "device_done.html", map[bool]string{true: "Refused", false: "Signed in"}[deny],
		map[string]any{"Denied": deny})
}
