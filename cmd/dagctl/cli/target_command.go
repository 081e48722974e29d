package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
)

// TargetCommand returns `dagctl target` with its subcommands.
func (c *CLI) TargetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Choose the server that commands talk to",
		Long: `A target is a server with a name. Commands talk to --target, else to DAGCTL_URL, else to the current
target, else to a dev server that runs in this folder or above it. DAGCTL_TOKEN wins over a stored token.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.targetListCommand(), c.targetUseCommand(), c.targetAddCommand())
	return cmd
}

// targetView is a target without its token.
type targetView struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

func (c *CLI) targetListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the targets",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			file, err := c.readTargets()
			if err != nil {
				return err
			}

			views := []targetView{}
			for _, name := range slices.Sorted(maps.Keys(file.Targets)) {
				views = append(views, targetView{name, file.Targets[name].URL, name == file.Current})
			}
			return c.Print(views, func(w io.Writer) {
				t := Table{Style: c.Style(c.Out), Header: []string{"", "NAME", "URL"}}
				for _, v := range views {
					mark := ""
					if v.Current {
						mark = "*"
					}
					t.Add(mark, v.Name, v.URL)
				}
				t.Write(w)
			})
		},
	}
}

func (c *CLI) targetUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "use NAME",
		Short: "Make a target the current target",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := c.readTargets()
			if err != nil {
				return err
			}

			chosen, ok := file.Targets[args[0]]
			if !ok {
				return fault.New(fault.NotFound, "there is no target %q", args[0]).
					WithHint("`dagctl target list` lists the targets")
			}
			file.Current = args[0]
			if err := c.writeTargets(file); err != nil {
				return err
			}

			fmt.Fprintf(c.Err, "Commands now talk to %s (%s).\n", args[0], chosen.URL)
			return nil
		},
	}
}

func (c *CLI) targetAddCommand() *cobra.Command {
	var address, tokenFile string
	cmd := &cobra.Command{
		Use:   "add NAME --url URL [--token-file FILE]",
		Short: "Add or replace a target; the first one becomes the current target",
		Example: `  dagctl target add prod --url https://dagctl.example.com --token-file token.txt
  dagctl target add prod --url https://dagctl.example.com --token-file - < token.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := c.readTargets()
			if err != nil {
				return err
			}
			added := Target{Name: args[0], URL: strings.TrimRight(address, "/")}
			if err := added.check(); err != nil {
				return err
			}

			if tokenFile != "" {
				if added.Token, err = c.readToken(tokenFile); err != nil {
					return err
				}
			}
			if file.Targets == nil {
				file.Targets = map[string]Target{}
			}
			file.Targets[args[0]] = added
			if len(file.Targets) == 1 {
				file.Current = args[0]
			}
			return c.writeTargets(file)
		},
	}

	cmd.Flags().StringVar(&address, "url", "", "address of the server")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with a service token; - reads standard input")
	_ = cmd.MarkFlagRequired("url")
	return cmd
}

// readToken reads a token from a file, because an argument would stay in the shell's history and the process list.
func (c *CLI) readToken(path string) (string, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(c.In, 1<<16))
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}

	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fault.New(fault.Invalid, "%s has no token in it", path)
	}
	return token, nil
}
