package dags

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// forwardFlag is the flag --forward-only[=PARTITION]. Without a value it keeps all existing partitions, otherwise those
// before the one it names.
type forwardFlag struct {
	given bool
	from  string
}

// allPartitions is the value of the flag without a value.
const allPartitions = "*"

func (f *forwardFlag) Set(text string) error {
	f.given, f.from = true, text
	if text == allPartitions {
		f.from = ""
	}
	return nil
}

func (f *forwardFlag) String() string { return f.from }
func (f *forwardFlag) Type() string   { return "PARTITION" }

func (f *forwardFlag) add(flags *pflag.FlagSet) {
	flags.Var(f, "forward-only", "keep the existing partitions as they are, for good, or only those before PARTITION")
	flags.Lookup("forward-only").NoOptDefVal = allPartitions
}

// apply sets the fields of a request. Without the flag it leaves the request as it is: a saved plan has them already.
func (f *forwardFlag) apply(request *registry.DeployRequest) {
	if f.given {
		request.ForwardOnly, request.ForwardFrom = true, f.from
	}
}

// writeKept prints how much a plan leaves as it is.
func writeKept(w io.Writer, list []registry.Change) {
	datasets, partitions := 0, 0
	for _, c := range list {
		if c.Action == deploy.ForwardOnly {
			datasets, partitions = datasets+1, partitions+c.Kept
		}
	}
	if datasets > 0 {
		fmt.Fprintf(w, "Forward-only: %d partitions of %d datasets stay as they are, for good; "+
			"a partition is computed again only if its inputs change.\n", partitions, datasets)
	}
}
