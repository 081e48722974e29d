package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker in release builds: -ldflags "-X github.com/dagctl/dagctl/cmd/dagctl/cli.version=v1.2.3".
var version string

// Version returns the release, or the version that the Go toolchain recorded in the build.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// VersionCommand returns `dagctl version`.
func (c *CLI) VersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
			}{Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH}

			return c.Print(v, func(w io.Writer) {
				fmt.Fprintf(w, "dagctl %s (%s, %s/%s)\n", v.Version, v.Go, v.OS, v.Arch)
			})
		},
	}
}
