package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker in release builds: -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion is the release, or what the Go toolchain knows of the build.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
			}{buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "dagctl %s (%s, %s/%s)\n", v.Version, v.Go, v.OS, v.Arch)
			})
		},
	}
}
