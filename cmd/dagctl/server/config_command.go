package server

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// OrgList names orgs. It was a boolean once: false still means none, and true is refused, because it let every org run
// programs.
type OrgList []string

// UnmarshalYAML reads a list of orgs.
func (l *OrgList) UnmarshalYAML(node *yaml.Node) error {
	var all bool
	if node.Kind == yaml.ScalarNode && node.Decode(&all) == nil {
		if all {
			return everyOrg(node.Line)
		}
		*l = nil
		return nil
	}
	var orgs []string
	if err := node.Decode(&orgs); err != nil {
		return err
	}
	*l = append(OrgList(nil), orgs...) // nil where the list is empty
	return nil
}

func everyOrg(line int) error {
	return fault.New(fault.Invalid, "line %d: allow_command is a list of orgs now, and not true: [acme, other]", line)
}

// OrgsOf reads the orgs of a setting that was a boolean once, such as DAGCTL_ALLOW_COMMAND.
func OrgsOf(setting, value string) (OrgList, error) {
	switch {
	case value == "false":
		return nil, nil
	case value == "true", strings.HasPrefix(value, "-"): // the next flag
		return nil, fault.New(fault.Invalid, "%s is a list of orgs now, and not true: acme,other", setting)
	}
	var orgs OrgList
	for org := range strings.SplitSeq(value, ",") {
		if org = strings.TrimSpace(org); org != "" {
			orgs = append(orgs, org)
		}
	}
	return orgs, nil
}

// only returns the orgs for which this process runs what it runs for some orgs alone: see dag.Job.RunsAs. No list is
// nil: other processes read it as JSON, where null would say nothing.
func (cfg *Config) only(folders Folders) map[string][]string {
	only := map[string][]string{
		"command":        append([]string{}, cfg.Operators.AllowCommand...),
		dag.FolderExport: append([]string{}, slices.Sorted(maps.Keys(cfg.ExportRoots))...),
	}
	if folders.Orgs != nil {
		only["file_source"] = folders.Orgs
	}
	return only
}

// commandOptions say what programs may reach. The server's own files are hidden wherever they are.
func (cfg *Config) commandOptions() operators.CommandOptions {
	hidden := append([]string{cfg.path, cfg.Storage.Root, cfg.Secrets.KeyFile}, cfg.Tasks.KeyFiles...)
	for _, p := range cfg.Identity.Providers {
		hidden = append(hidden, p.ClientSecretFile)
	}
	o := operators.CommandOptions{Orgs: cfg.Operators.AllowCommand, Paths: cfg.Operators.CommandPaths,
		Shared: cfg.Operators.CommandShared, Memory: cfg.Operators.CommandMemoryMB << 20,
		Output: cfg.Operators.CommandOutputMB << 20, Hidden: cfg.Hidden}
	for _, path := range hidden {
		if full, err := filepath.Abs(path); err == nil && path != "" {
			o.Hidden = append(o.Hidden, full)
		}
	}
	return o
}
