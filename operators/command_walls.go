package operators

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
)

// CommandOptions say which programs run as operator command, and what they may reach beside the files of their task.
type CommandOptions struct {
	Orgs   []string // whose DAGs may run programs
	Every  bool     // those of every org may
	Paths  []string // files and folders that programs may read and run, beside those of the system and of PATH
	Shared []string // folders that they may also write to
	Hidden []string // what they may not reach even below a folder of the org's sources: keys, the config, other data
	Memory int64    // bytes that the processes of one program may hold together; 0: 4 GiB
	Output int64    // bytes of the files of one program, left or in its work folder, holes included; 0: 32 GiB
}

const (
	defaultCommandMemory = 4 << 30
	mostCommandProcesses = 1024 // and threads
	defaultCommandOutput = 32 << 30
)

// allowed returns an error unless an org may run programs; "" asks whether any may.
func (o CommandOptions) allowed(org string) error {
	switch {
	case o.Every, org == "" && len(o.Orgs) > 0, slices.Contains(o.Orgs, org):
		return nil
	case org == "" || len(o.Orgs) == 0:
		return fault.New(fault.Forbidden, "the command operator is disabled on this server").
			WithHint("an admin of the server lists the orgs that may use it: operators.allow_command in its config")
	}
	return fault.New(fault.Forbidden, "the command operator is disabled for org %s on this server", org).
		WithHint("an admin of the server lists the orgs that may use it: operators.allow_command in its config")
}

// walls are what the program of a task may reach: its inputs, its folders, the org's sources, and the machine's
// programs.
func (o CommandOptions) walls(t *Task, task CommandTask) sandbox.Walls {
	w := sandbox.Walls{Write: append([]string{task.Scratch}, t.OutputDirs...), Exec: []string{task.Scratch},
		Hidden: o.Hidden, Network: true, Memory: o.Memory, Processes: mostCommandProcesses, Disk: o.output(),
		Scratch: append([]string{task.Scratch}, t.OutputDirs...), Written: o.output(), Files: sandbox.DefaultFiles}
	if w.Memory == 0 {
		w.Memory = defaultCommandMemory
	}
	for _, in := range task.Inputs {
		w.Read = append(w.Read, in.Files...)
	}

	w.Write = append(w.Write, existing(o.Shared)...)
	for _, dirs := range [][]string{t.Roots, o.Paths, filepath.SplitList(os.Getenv("PATH"))} {
		w.Exec = append(w.Exec, existing(dirs)...)
	}
	return w
}

// output returns how many bytes a program may leave, and write into one file.
func (o CommandOptions) output() int64 {
	if o.Output > 0 {
		return o.Output
	}
	return defaultCommandOutput
}

// tooMuch is the error of a program that wrote more than it may.
func (o CommandOptions) tooMuch() error {
	return Permanent(fault.New(fault.TooLarge, "it wrote more than the %d MiB that a program may", o.output()>>20).
		WithHint("write less, or let an admin of the server raise operators.command_output_mb in its config"))
}

// passed is the error of a program that passed a limit of its walls.
func (o CommandOptions) passed(program string, limit error) error {
	if errors.Is(limit, sandbox.ErrWritten) {
		limit = fault.New(fault.TooLarge, "%w", limit).
			WithHint("write less, or let an admin of the server raise operators.command_output_mb in its config")
	}
	return Permanent(fmt.Errorf("%s: %w", program, limit))
}

// checkOutput returns an error if a program left more than it may. Holes of files count: whoever reads the file reads
// them.
func (o CommandOptions) checkOutput(dirs []string) error {
	total := int64(0)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().IsRegular() {
				total += info.Size()
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("measure what the program wrote: %w", err)
		}
	}

	if total > o.output() {
		return o.tooMuch()
	}
	return nil
}

// ToolFolders returns the folders that programs on PATH belong to, outside of the system's own: those above bin and
// shims. Version managers, and environments of a language, keep there what their programs need. It is for servers whose
// programs are those of the person who starts them.
func ToolFolders() (folders []string) {
	home, _ := os.UserHomeDir() // without one, there is none to leave out
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		above, name := filepath.Dir(dir), filepath.Base(dir)
		if !slices.Contains([]string{"bin", "sbin", "shims"}, name) || !filepath.IsAbs(dir) ||
			slices.Contains([]string{"/", "/usr", home}, above) || slices.Contains(folders, above) {
			continue
		}
		folders = append(folders, above)
	}
	return folders
}

// existing returns the paths that there are, by their full names.
func existing(paths []string) (found []string) {
	for _, path := range paths {
		if full, err := filepath.Abs(path); err == nil && path != "" {
			if _, err := os.Stat(full); err == nil {
				found = append(found, full)
			}
		}
	}
	return found
}
