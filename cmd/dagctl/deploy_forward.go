package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/dagctl/dagctl/registry"
)

// forwardFlag is --forward-only[=PARTITION]: given alone it keeps all partitions there are, otherwise those before one.
type forwardFlag struct {
	given bool
	from  string
}

// allThereAre stands for the flag given alone.
const allThereAre = "*"

func (f *forwardFlag) Set(text string) error {
	f.given, f.from = true, text
	if text == allThereAre {
		f.from = ""
	}
	return nil
}

func (f *forwardFlag) String() string { return f.from }
func (f *forwardFlag) Type() string   { return "PARTITION" }

func (f *forwardFlag) add(flags *pflag.FlagSet) {
	flags.Var(f, "forward-only", "keep the partitions there are as they are, for good, or those before PARTITION")
	flags.Lookup("forward-only").NoOptDefVal = allThereAre
}

// apply asks for it in a request; a saved plan says by itself what it is.
func (f *forwardFlag) apply(request *registry.DeployRequest) {
	if f.given {
		request.ForwardOnly, request.ForwardFrom = true, f.from
	}
}

// writeKept says what a plan leaves as it is.
func writeKept(w io.Writer, list []registry.Change) {
	datasets, partitions := 0, 0
	for _, c := range list {
		if c.Action == registry.ForwardOnly {
			datasets, partitions = datasets+1, partitions+c.Kept
		}
	}
	if datasets > 0 {
		fmt.Fprintf(w, "Forward-only: %d partitions of %d datasets stay as they are, for good; they are made anew only where what they were made from changes.\n", partitions, datasets)
	}
}
