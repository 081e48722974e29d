package dags

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// PinCommand returns `dagctl pin`.
func PinCommand(c *cli.CLI) *cobra.Command {
	var until, reason string
	cmd := &cobra.Command{
		Use:   "pin DAG [VERSION]",
		Short: "Keep a version's data from gc",
		Long: `Keeps every dataset version that a DAG version points at, so that a rollback to it stays instant beyond
the rollback window. A pin holds the version as a whole, because a rollback needs all of its datasets. Without VERSION
it lists the pinned versions.`,
		Example: "  dagctl pin us-flights v3 --until 2027-03-31 --reason \"annual report\"\n  dagctl pin us-flights",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return listPins(c, cmd, args[0])
			}
			number, err := versionNumber(args[1])
			if err != nil {
				return err
			}
			request := registry.PinRequest{Reason: reason}
			if request.Until, err = instant(until); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			var pin registry.VersionPin
			if err := api.Put(cmd.Context(), cli.VersionPath(args[0], number)+"/pin", request, &pin); err != nil {
				return err
			}
			return c.Print(pin, func(w io.Writer) {
				fmt.Fprintf(w, "%s v%d is pinned %s\n", pin.DAG, pin.Number, pinnedUntil(pin))
			})
		},
	}

	cmd.Flags().StringVar(&until, "until", "",
		"day (2027-03-31) or time (2027-03-31T12:00:00Z) until which it is kept (default: for good)")
	cmd.Flags().StringVar(&reason, "reason", "", "note for people why it is kept")
	return cmd
}

func listPins(c *cli.CLI, cmd *cobra.Command, dag string) error {
	api, err := c.Connect()
	if err != nil {
		return err
	}
	pins, err := cli.FetchWhole[registry.VersionPin](cmd.Context(), api, cli.DAGPath(dag)+"/pins")
	if err != nil {
		return err
	}

	return c.Print(pins, func(w io.Writer) {
		t := cli.Table{Style: c.Style(w), Header: []string{"VERSION", "KEPT", "BY", "REASON"}}
		for _, p := range pins {
			t.Add(fmt.Sprintf("v%d", p.Number), pinnedUntil(p), cli.OneLine(p.Actor, 30), cli.OneLine(p.Reason, 80))
		}
		t.Write(w)
	})
}

// UnpinCommand returns `dagctl unpin`.
func UnpinCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "unpin DAG VERSION",
		Short: "Let gc remove a version's data again",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			number, err := versionNumber(args[1])
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			return api.Delete(cmd.Context(), cli.VersionPath(args[0], number)+"/pin")
		},
	}
}

func pinnedUntil(p registry.VersionPin) string {
	if p.Until == nil {
		return "for good"
	}
	return "until " + p.Until.UTC().Format("2006-01-02 15:04 UTC")
}

// instant reads a time, or a day, which stands for its end.
func instant(text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		end := day.AddDate(0, 0, 1)
		return &end, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%q is neither a day nor a time", text).
			WithHint("write 2027-03-31, or 2027-03-31T12:00:00Z")
	}
	return &t, nil
}
