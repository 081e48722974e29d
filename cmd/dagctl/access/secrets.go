package access

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
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
)

// SecretsCommand returns `dagctl secrets` with its subcommands.
func SecretsCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Set, bind, list and delete secrets",
		Long: `A DAG file names a secret as {secret: NAME} and never has its value. An admin sets the value, and binds
the secret to the jobs that may use it and to the hosts that requests may send it to. Nobody can read the value back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(secretsSetCommand(c), secretsBindCommand(c), secretsListCommand(c), secretsDeleteCommand(c))
	return cmd
}

func secretsSetCommand(c *cli.CLI) *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a secret's value, from standard input or a prompt",
		Long: `Reads the value from standard input, or asks for it on a terminal without showing it. The value is never
an argument, because other processes see arguments and shells keep them. One line break at its end is removed. With
--overlap, deliveries to webhooks may still be signed with the value before for so long; everything else gets the new
one at once. The value before ends when the secret is set again.`,
		Example: "  dagctl secrets set api_key < key.txt\n" +
			"  openssl rand -hex 32 | dagctl secrets set hook_key --overlap 24h",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if overlap%time.Second != 0 {
				return fault.New(fault.Invalid, "--overlap %s is no whole number of seconds", overlap)
			}
			value, err := readSecret(c, args[0])
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			body := authz.SetSecretRequest{Value: value, OverlapSeconds: int64(overlap / time.Second)}
			var s authz.Secret
			if err := api.Put(cmd.Context(), secretPath(args[0]), body, &s); err != nil {
				return err
			}

			return c.Print(s, func(io.Writer) {
				fmt.Fprintf(c.Err, "Secret %s is set.\n", s.Name)
				if s.PreviousUntil != nil {
					fmt.Fprintf(c.Err, "The value before counts until %s.\n",
						s.PreviousUntil.UTC().Format(time.RFC3339))
				}
				if len(s.Jobs) == 0 {
					fmt.Fprintf(c.Err, "No job may use it yet: `dagctl secrets bind %s --job DAG/JOB --host HOST`.\n",
						s.Name)
				}
			})
		},
	}

	cmd.Flags().DurationVar(&overlap, "overlap", 0,
		"for how long others may still sign with the value before, up to 720h")
	return cmd
}

func secretPath(name string) string { return "/v1/secrets/" + url.PathEscape(name) }

// maxSecret is the limit in bytes of a value; the API sets it.
const maxSecret = 64 << 10

// readSecret reads a value from standard input; on a terminal it asks, and does not show the value.
func readSecret(c *cli.CLI, name string) (string, error) {
	if cli.IsTerminal(c.In) {
		fmt.Fprintf(c.Err, "Value of %s: ", name)
		text, err := term.ReadPassword(int(c.In.(*os.File).Fd()))
		fmt.Fprintln(c.Err)
		if err != nil {
			return "", cli.ErrAborted
		}
		return string(text), nil
	}

	text, err := io.ReadAll(io.LimitReader(c.In, maxSecret+3))
	if err != nil {
		return "", fmt.Errorf("read the value: %w", err)
	}

	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case value == "":
		return "", fault.New(fault.Invalid, "standard input is empty").WithHint("`dagctl secrets set %s < FILE`", name)
	case len(value) > maxSecret:
		return "", fault.New(fault.TooLarge, "the value has more than %d bytes", maxSecret)
	}
	return value, nil
}

func secretsBindCommand(c *cli.CLI) *cobra.Command {
	var (
		jobs, hosts, programs []string
		remove                bool
	)
	cmd := &cobra.Command{
		Use:   "bind NAME [--job DAG/JOB] [--host HOST] [--program DAG/JOB]",
		Short: "Choose which jobs may use a secret, and who may get it",
		Long: `Binds a secret to jobs, each as DAG/JOB, or to a DAG's notifications, as DAG. Requests carry the secret
only to hosts that it is bound to: api.example.com, api.example.com:8443, or http://box.internal:8080 for a host
without TLS. The host * is any with TLS, and http://* any without: whoever writes the DAG then chooses where it goes.
Programs can send it anywhere, whatever the hosts are, so the command operator and functions of workers get it only if
--program grants it to the program of their job. The grant holds for the program that the job runs now: once its
config, runtime or code_version differs, deploys and tasks are refused until an admin grants the secret again. Errors
of plan and deploy name a program as DAG/JOB@PROGRAM, which can be granted before it is deployed.`,
		Example: `  dagctl secrets bind api_key --job us-flights/flights_raw --host api.example.com
  dagctl secrets bind api_key --program us-flights/upload
  dagctl secrets bind api_key --program us-flights/upload@0f6d1c9a52be4c7783a1d0e95b64f218
  dagctl secrets bind api_key --job us-flights/flights_raw --remove`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(jobs)+len(hosts)+len(programs) == 0 {
				return fault.New(fault.Invalid, "there is nothing to bind to").
					WithHint("pass --job, --host or --program")
			}
			change := authz.Binding{AddJobs: jobs, AddHosts: hosts, AddPrograms: programs}
			if remove {
				change = authz.Binding{RemoveJobs: jobs, RemoveHosts: hosts, RemovePrograms: programs}
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var s authz.Secret
			if err := api.Patch(cmd.Context(), secretPath(args[0]), change, &s); err != nil {
				return err
			}
			return c.Print(s, func(w io.Writer) { writeSecrets(c, w, []authz.Secret{s}) })
		},
	}

	f := cmd.Flags()
	f.StringArrayVar(&jobs, "job", nil, "DAG/JOB that may use the secret, or DAG for its notifications (repeatable)")
	f.StringArrayVar(&hosts, "host", nil, "host that may get the secret (repeatable)")
	f.StringArrayVar(&programs, "program", nil,
		"DAG/JOB whose program may have the secret, or DAG/JOB@PROGRAM; binds it to the job as well (repeatable)")
	f.BoolVar(&remove, "remove", false, "remove these bindings")
	return cmd
}

func secretsListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's secrets, without their values",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			secrets, err := cli.Fetch[authz.Secret](cmd.Context(), api, "/v1/secrets", nil, page)
			if err != nil {
				return err
			}
			return c.Print(secrets, func(w io.Writer) { writeSecrets(c, w, secrets) })
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func writeSecrets(c *cli.CLI, w io.Writer, secrets []authz.Secret) {
	now, old, missing := c.Now(), 0, 0
	t := cli.Table{Style: c.Style(c.Out),
		Header: []string{"NAME", "JOBS", "HOSTS", "PROGRAMS", "SET", "PREVIOUS UNTIL"}}
	for _, s := range secrets {
		previous := ""
		if s.PreviousUntil != nil {
			previous = s.PreviousUntil.UTC().Format(time.RFC3339)
		}
		if s.OldKey {
			old++
		}
		if s.KeyMissing {
			missing++
		}
		t.Add(s.Name, strings.Join(s.Jobs, ","), strings.Join(s.Hosts, ","),
			strings.Join(s.Programs, ","), cli.Ago(&s.UpdatedAt, now), previous)
	}

	t.Write(w)
	if old > 0 {
		fmt.Fprintf(c.Err, "Encrypted with an old key: %s. `dagctl admin rotate-secrets` changes that.\n",
			plural.Of(old, "secret"))
	}
	if missing > 0 {
		fmt.Fprintf(c.Err, "Encrypted with a key that the server does not have: %s. Its administrator adds the key to "+
			"DAGCTL_SECRETS_KEY, or `dagctl secrets set` sets them again.\n", plural.Of(missing, "secret"))
	}
}

func secretsDeleteCommand(c *cli.CLI) *cobra.Command {
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a secret",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if dryRun {
				if err := api.Delete(cmd.Context(), secretPath(args[0])+"?dry_run=true"); err != nil {
					return err
				}
				fmt.Fprintf(c.Err, "Secret %s would be deleted: nothing uses it.\n", args[0])
				return nil
			}
			if err := c.Confirm(yes, "Delete secret %s? Jobs that use it will fail.", args[0]); err != nil {
				return err
			}
			if err := api.Delete(cmd.Context(), secretPath(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "Secret %s is deleted.\n", args[0])
			return nil
		},
	}

	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say whether it could be deleted")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
