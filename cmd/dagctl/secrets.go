package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

func (c *cli) secretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Set, bind, list and delete secrets",
		Long: `A secret is named in a DAG file as {secret: NAME}, and its value never is. An admin sets the value, binds it to the
jobs that may use it and to the hosts that it may be sent to. Nobody can read it back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.secretsSetCommand(), c.secretsBindCommand(), c.secretsListCommand(), c.secretsDeleteCommand())
	return cmd
}

func (c *cli) secretsSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME",
		Short: "Set a secret's value, read from standard input or asked for",
		Long: `Reads the value from standard input, or asks for it on a terminal without showing it. It is never an argument, since
those are seen by other processes and kept by shells. One line break at the end does not count.`,
		Example: "  dagctl secrets set api_key < key.txt\n  openssl rand -hex 32 | dagctl secrets set hook_key",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := c.readSecret(args[0])
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var s authz.Secret
			if err := api.put(cmd.Context(), secretPath(args[0]), authz.SetSecretRequest{Value: value}, &s); err != nil {
				return err
			}
			return c.print(s, func(io.Writer) {
				fmt.Fprintf(c.err, "Secret %s is set.\n", s.Name)
				if len(s.Jobs) == 0 {
					fmt.Fprintf(c.err, "Nothing may use it yet: `dagctl secrets bind %s --job DAG/JOB --host HOST`.\n", s.Name)
				}
			})
		},
	}
}

func secretPath(name string) string { return "/v1/secrets/" + url.PathEscape(name) }

// maxSecret is the API's limit.
const maxSecret = 64 << 10

// readSecret reads a value from standard input, unseen where that is a terminal.
func (c *cli) readSecret(name string) (string, error) {
	if isTerminal(c.in) {
		fmt.Fprintf(c.err, "Value of %s: ", name)
		text, err := term.ReadPassword(int(c.in.(*os.File).Fd()))
		fmt.Fprintln(c.err)
		if err != nil {
			return "", errAborted
		}
		return string(text), nil
	}
	text, err := io.ReadAll(io.LimitReader(c.in, maxSecret+3))
	if err != nil {
		return "", fmt.Errorf("read the value: %w", err)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case value == "":
		return "", fault.New(fault.Invalid, "standard input holds no value").WithHint("`dagctl secrets set %s < FILE`", name)
	case len(value) > maxSecret:
		return "", fault.New(fault.TooLarge, "the value has more than %d bytes", maxSecret)
	}
	return value, nil
}

func (c *cli) secretsBindCommand() *cobra.Command {
	var (
		jobs, hosts []string
		remove      bool
	)
	cmd := &cobra.Command{
		Use:   "bind NAME [--job DAG/JOB] [--host HOST]",
		Short: "Say what may use a secret, and where it may be sent",
		Long: `Binds a secret to jobs, each as DAG/JOB, or to a DAG's notifications, as DAG. Requests carry it only to hosts that it
is bound to: api.example.com, api.example.com:8443, or http://box.internal:8080 for one in the clear. A program could
send it anywhere, so the command operator and functions of workers get it only where it is bound to the host '*'.`,
		Example: "  dagctl secrets bind api_key --job us-flights/flights_raw --host api.example.com\n  dagctl secrets bind api_key --job us-flights/flights_raw --remove",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(jobs)+len(hosts) == 0 {
				return fault.New(fault.Invalid, "there is nothing to bind to").WithHint("pass --job or --host")
			}
			change := authz.Binding{AddJobs: jobs, AddHosts: hosts}
			if remove {
				change = authz.Binding{RemoveJobs: jobs, RemoveHosts: hosts}
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var s authz.Secret
			if err := api.patch(cmd.Context(), secretPath(args[0]), change, &s); err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { c.writeSecrets(w, []authz.Secret{s}) })
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&jobs, "job", nil, "DAG/JOB that may use it, or DAG for its notifications (repeatable)")
	f.StringArrayVar(&hosts, "host", nil, "host that it may be sent to (repeatable)")
	f.BoolVar(&remove, "remove", false, "take these bindings away")
	return cmd
}

func (c *cli) secretsListCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's secrets, without their values",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			secrets, err := fetch[authz.Secret](cmd.Context(), api, "/v1/secrets", nil, page)
			if err != nil {
				return err
			}
			return c.print(secrets, func(w io.Writer) { c.writeSecrets(w, secrets) })
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) writeSecrets(w io.Writer, secrets []authz.Secret) {
	now := time.Now()
	t := table{style: c.style(c.out), header: []string{"NAME", "JOBS", "HOSTS", "SET"}}
	for _, s := range secrets {
		t.add(s.Name, strings.Join(s.Jobs, ","), strings.Join(s.Hosts, ","), ago(&s.UpdatedAt, now))
	}
	t.write(w)
}

func (c *cli) secretsDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Forget a secret",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			if err := c.confirm(yes, "Delete secret %s? What uses it fails from now on.", args[0]); err != nil {
				return err
			}
			if err := api.delete(cmd.Context(), secretPath(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.err, "Secret %s is deleted.\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
