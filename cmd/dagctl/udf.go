package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

const bundlesPath = "/v1/udf-bundles"

func (c *cli) udfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "udf",
		Short: "Send and list code of your own that jobs run",
		Long: `Jobs of operator udf run code of your own on workers, behind walls. A DAG file names a folder beside it, which goes with
the deploy, or a bundle that was sent before with this command, by its id.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.udfPushCommand(), c.udfListCommand())
	return cmd
}

func (c *cli) udfPushCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "push FOLDER|ZIP",
		Short: "Send code, and print the id that udf.bundle names it by",
		Long: `Sends a folder or a zip archive of one. Hidden files, __pycache__ and node_modules stay behind. The id is the hash of the
content: the same content has the same id, whenever and from wherever it is sent.`,
		Example: "  dagctl udf push ./scoring\n  dagctl udf push dist/scoring.zip --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := bundleArchive(args[0])
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var b registry.Bundle
			if err := api.doRaw(cmd.Context(), http.MethodPost, bundlesPath, "application/zip", bytes.NewReader(archive), &b); err != nil {
				return err
			}
			return c.print(b, func(w io.Writer) { fmt.Fprintln(w, b.Bundle) })
		},
	}
}

// bundleArchive is the zip to send of a folder, or the zip itself.
func bundleArchive(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err)
	}
	if !info.IsDir() {
		if info.Size() > dag.MaxUDFBytes {
			return nil, fault.New(fault.TooLarge, "%s has %d bytes; %d are allowed", path, info.Size(), dag.MaxUDFBytes)
		}
		return os.ReadFile(path)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err)
	}
	defer root.Close()
	bundle, err := dag.ReadBundle(root.FS(), ".")
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s: %w", path, err)
	}
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, data := range bundle.Files {
		file, err := w.Create(name)
		if err == nil {
			_, err = file.Write(data)
		}
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c *cli) udfListCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the bundles of code",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			bundles, err := fetch[registry.Bundle](cmd.Context(), api, bundlesPath, nil, page)
			if err != nil {
				return err
			}
			return c.print(bundles, func(w io.Writer) {
				t := table{style: c.style(w), header: []string{"BUNDLE", "FILES", "BYTES", "BY", "SENT"}}
				for _, b := range bundles {
					t.add(b.Bundle, fmt.Sprint(b.Files), fmt.Sprint(b.Bytes), oneLine(b.CreatedBy, 30), b.CreatedAt.UTC().Format("2006-01-02 15:04 UTC"))
				}
				t.write(w)
			})
		},
	}
	page.add(cmd)
	return cmd
}
