package dags

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

const bundlesPath = "/v1/udf-bundles"

// UDFCommand returns `dagctl udf` with its subcommands.
func UDFCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "udf",
		Short: "Upload and list code of your own that jobs run",
		Long: `Jobs of operator udf run code of your own on workers, in a sandbox. A DAG file names a folder beside it,
which the deploy uploads, or the id of a bundle that this command uploaded before.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(udfPushCommand(c), udfListCommand(c))
	return cmd
}

func udfPushCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "push FOLDER|ZIP",
		Short: "Upload code, and print the id that udf.bundle names",
		Long: `Uploads a folder or a zip archive of one, without hidden files, __pycache__ and node_modules. The id is
the hash of the content: the same content always has the same id.`,
		Example: "  dagctl udf push ./scoring\n  dagctl udf push dist/scoring.zip --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := bundleArchive(args[0])
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var b registry.Bundle
			content := bytes.NewReader(archive)
			if err := api.DoRaw(cmd.Context(), http.MethodPost, bundlesPath, "application/zip",
				content, &b); err != nil {
				return err
			}

			return c.Print(b, func(w io.Writer) { fmt.Fprintln(w, b.Bundle) })
		},
	}
}

// bundleArchive returns a zip archive of a folder, or the archive that the path names.
func bundleArchive(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err)
	}

	if !info.IsDir() {
		if info.Size() > dag.MaxUDFBytes {
			return nil, fault.New(fault.TooLarge, "%s has %d bytes; at most %d are allowed", path,
				info.Size(), dag.MaxUDFBytes)
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

func udfListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the bundles of code",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			bundles, err := cli.Fetch[registry.Bundle](cmd.Context(), api, bundlesPath, nil, page)
			if err != nil {
				return err
			}

			return c.Print(bundles, func(w io.Writer) {
				t := cli.Table{Style: c.Style(w), Header: []string{"BUNDLE", "FILES", "BYTES", "BY", "SENT"}}
				for _, b := range bundles {
					t.Add(b.Bundle, fmt.Sprint(b.Files), fmt.Sprint(b.Bytes), cli.OneLine(b.CreatedBy, 30),
						b.CreatedAt.UTC().Format("2006-01-02 15:04 UTC"))
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	return cmd
}
