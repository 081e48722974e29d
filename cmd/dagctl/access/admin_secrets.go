package access

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
)

// adminRotateSecretsCommand returns `dagctl admin rotate-secrets`.
func adminRotateSecretsCommand(c *cli.CLI) *cobra.Command {
	var databaseURL, keyFile string
	cmd := &cobra.Command{
		Use:   "rotate-secrets",
		Short: "Encrypt the secrets of all orgs with the newest key, straight in the database",
		Long: `Encrypts every secret, and the value before it where that is kept, with the first key of
DAGCTL_SECRETS_KEY or of the key file, unless it is so already. The keys behind the first decrypt. Servers may run
meanwhile, if all of them have the new key already. A secret that cannot be decrypted is named and stays as it is.`,
		Example: "  DAGCTL_SECRETS_KEY=$NEW,$OLD dagctl admin rotate-secrets " +
			"--database-url postgres://dagctl@db/dagctl",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := authz.VaultKeys(c.Getenv("DAGCTL_SECRETS_KEY"), keyFile)
			if err != nil {
				return err
			}
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			pool, err := pg.Open(cmd.Context(), address, pg.WithMaxConns(2))
			if err != nil {
				return err
			}
			defer pool.Close()

			vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Keys: keys})
			if err != nil {
				return err
			}
			done, err := vault.RotateKeys(cmd.Context())
			if err != nil {
				return err
			}
			if err := c.Print(done, func(w io.Writer) { writeRotation(c, w, done) }); err != nil {
				return err
			}

			if len(done.Unreadable) > 0 {
				return cli.ErrReported
			}
			return nil
		},
	}

	cmd.Flags().StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	cmd.Flags().StringVar(&keyFile, "key-file", "", "keys, one per line, the newest first (or DAGCTL_SECRETS_KEY)")
	return cmd
}

func writeRotation(c *cli.CLI, w io.Writer, done authz.Rotation) {
	fmt.Fprintf(w, "%s now encrypted with the newest key.\n", plural.Of(done.Rotated, "secret"))
	for _, s := range done.Unreadable {
		fmt.Fprintf(c.Err, "%s of org %s stays as it is: %s\n", s.Name, s.Org, s.Error)
	}
	if len(done.Unreadable) == 0 {
		fmt.Fprintln(c.Err, "No secret needs an older key.")
	}
}
