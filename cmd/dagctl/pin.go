package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) pinCommand() *cobra.Command {
	var until, reason string
	cmd := &cobra.Command{
		Use:   "pin DAG [VERSION]",
		Short: "Keep a version's data from gc",
		Long: `Keeps every dataset version that a DAG version points at, so that rolling back to it stays instant beyond the rollback
window. A version is pinned as a whole: one of its datasets alone is not what one rolls back to. Without VERSION it lists
what is pinned.`,
		Example: "  dagctl pin us-flights v3 --until 2027-03-31 --reason \"annual report\"\n  dagctl pin us-flights",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return c.listPins(cmd, args[0])
			}
			number, err := versionNumber(args[1])
			if err != nil {
				return err
			}
			request := registry.PinRequest{Reason: reason}
			if request.Until, err = instant(until); err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var pin registry.VersionPin
			if err := api.put(cmd.Context(), versionPath(args[0], number)+"/pin", request, &pin); err != nil {
				return err
			}
			return c.print(pin, func(w io.Writer) { fmt.Fprintf(w, "%s v%d is pinned %s\n", pin.DAG, pin.Number, pinnedUntil(pin)) })
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "day (2027-03-31) or time (2027-03-31T12:00:00Z) until which it is kept (default: for good)")
	cmd.Flags().StringVar(&reason, "reason", "", "for people")
	return cmd
}

func (c *cli) listPins(cmd *cobra.Command, dag string) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	pins, err := fetch[registry.VersionPin](cmd.Context(), api, dagPath(dag)+"/pins", nil, pageFlags{limit: 500})
	if err != nil {
		return err
	}
	return c.print(pins, func(w io.Writer) {
		t := table{style: c.style(w), header: []string{"VERSION", "KEPT", "BY", "REASON"}}
		for _, p := range pins {
			t.add(fmt.Sprintf("v%d", p.Number), pinnedUntil(p), oneLine(p.Actor, 30), oneLine(p.Reason, 80))
		}
		t.write(w)
	})
}

func (c *cli) unpinCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unpin DAG VERSION",
		Short: "Let gc have a version's data again",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			number, err := versionNumber(args[1])
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			return api.delete(cmd.Context(), versionPath(args[0], number)+"/pin")
		},
	}
}

func pinnedUntil(p registry.VersionPin) string {
	if p.Until == nil {
		return "for good"
	}
	return "until " + p.Until.UTC().Format("2006-01-02 15:04 UTC")
}

// instant reads a day, which ends at its end, or a point in time.
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
		return nil, fault.New(fault.Invalid, "%q is neither a day nor a time", text).WithHint("write 2027-03-31, or 2027-03-31T12:00:00Z")
	}
	return &t, nil
}
