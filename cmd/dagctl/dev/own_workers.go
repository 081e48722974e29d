package dev

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
)

// ownWorkers runs the workers that the folders of DAG files declare: it starts them, starts them anew on every save of
// their code, and stops them.
type ownWorkers struct {
	*cli.CLI
	dir        string // of the dev server
	config     string // the server's config, which may have the name of a dev.yaml
	url, token string
	once       bool
	failed     chan error // with once: a worker that does not run
	log        *slog.Logger

	running map[string]*ownWorker        // by name
	reading map[string][sha256.Size]byte // by folder: the dev.yaml whose problems were told last
}

// serves reports whether the folder of a DAG file declares workers.
func (o *ownWorkers) serves(folder string) bool {
	if o.isConfig(filepath.Join(folder, devFileName)) {
		return false
	}
	workers, problems, err := readDevFile(o.dir, folder)
	return err == nil && len(workers)+len(problems) > 0
}

// look returns the workers that are declared now. A dev.yaml with problems leaves its workers as they are.
func (o *ownWorkers) look() (workers []declared, err error) {
	folders, err := dagfile.Folders(o.dir)
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		if o.isConfig(filepath.Join(folder, devFileName)) {
			continue
		}
		found, problems, err := readDevFile(o.dir, folder)
		if err != nil {
			return nil, err
		}

		told := sha256.Sum256([]byte(problems.Error()))
		if len(problems) > 0 {
			if o.reading[folder] != told {
				fmt.Fprint(o.Err, problems.Pretty())
			}
			if o.once {
				return nil, cli.ErrReported
			}
			found = nil
			for _, w := range o.running {
				if w.declared.folder == folder {
					found = append(found, w.declared)
				}
			}
		}
		o.reading[folder] = told
		workers = append(workers, found...)
	}
	return workers, nil
}

// isConfig reports whether a file is the one that --config names.
func (o *ownWorkers) isConfig(file string) bool {
	if o.config == "" {
		return false
	}
	config, err := os.Stat(o.config)
	if err != nil {
		return false
	}
	info, err := os.Stat(file)
	return err == nil && os.SameFile(config, info)
}

// run keeps the declared workers running until ctx ends, and then stops them.
func (o *ownWorkers) run(ctx context.Context) error {
	o.running, o.reading = map[string]*ownWorker{}, map[string][sha256.Size]byte{}
	defer func() {
		for _, w := range o.running {
			w.end()
		}
		for _, w := range o.running {
			<-w.ended
		}
	}()

	for {
		workers, err := o.look()
		if err != nil && (o.once || len(o.running) == 0) {
			return err
		}
		if err == nil {
			o.match(workers)
		}
		for _, w := range o.running {
			w.watch()
		}
		if err := cli.Sleep(ctx, pollInterval); err != nil {
			return nil
		}
		select {
		case err := <-o.failed:
			return err
		default:
		}
	}
}

// giveUp ends the dev server, which would wait for ever for what a worker does that does not run.
func (o *ownWorkers) giveUp(name string, exit error, last []string) {
	said := "it printed nothing"
	if len(last) > 0 {
		said = "it printed last:\n  " + strings.Join(last, "\n  ")
	}
	select {
	case o.failed <- fmt.Errorf("worker %s failed %d times in a row: %w; %s", name, mostFailures, exit, said):
	default: // another has failed already
	}
}

// match stops workers that are no longer declared, and starts those that are not yet running.
func (o *ownWorkers) match(workers []declared) {
	wanted := map[string]declared{}
	for _, d := range workers {
		for name, n := d.Name, 2; ; n++ {
			if _, taken := wanted[d.Name]; !taken {
				break
			}
			d.Name = fmt.Sprintf("%s (%d)", name, n)
		}
		wanted[d.Name] = d
	}

	for name, w := range o.running {
		if d, ok := wanted[name]; !ok || !d.equal(w.declared) {
			w.end()
			<-w.ended
			delete(o.running, name)
		}
	}
	for name, d := range wanted {
		if o.running[name] == nil {
			o.running[name] = o.start(d)
		}
	}
}

// fingerprint returns a hash of the names, sizes and times of a worker's code.
func (d declared) fingerprint() (sum [sha256.Size]byte) {
	var files []string
	_ = filepath.WalkDir(d.Dir, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // it vanished, or this account may not read it
		case entry.IsDir() && file != d.Dir && foreign(file, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !slices.ContainsFunc(d.Watch, func(pattern string) bool {
			ok, _ := path.Match(pattern, entry.Name())
			return ok
		}):
			return nil
		}

		if info, err := entry.Info(); err == nil {
			files = append(files, fmt.Sprintln(file, info.Size(), info.ModTime().UnixNano()))
		}
		return nil
	})
	return sha256.Sum256([]byte(strings.Join(files, "")))
}

// foreign reports whether a folder holds what others have written: packages, caches, environments.
func foreign(folder, name string) bool {
	if strings.HasPrefix(name, ".") || name == "__pycache__" || name == "node_modules" {
		return true
	}
	_, err := os.Stat(filepath.Join(folder, "pyvenv.cfg"))
	return err == nil
}
