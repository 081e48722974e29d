package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/fault"
)

// Target is a server that commands talk to.
type Target struct {
	Name  string `yaml:"-"`
	URL   string `yaml:"url"`
	Token string `yaml:"token,omitempty"`
}

// targetFile is the file with the user's targets.
type targetFile struct {
	Current string            `yaml:"current,omitempty"`
	Targets map[string]Target `yaml:"targets,omitempty"`
}

// ResolveTarget returns the server that the command talks to: that of --target, else of DAGCTL_URL, else the current
// target, else a running dev server. DAGCTL_TOKEN wins over a stored token.
func (c *CLI) ResolveTarget() (Target, error) {
	found, err := c.findTarget()
	if err != nil {
		return Target{}, err
	}
	if token := c.Getenv("DAGCTL_TOKEN"); token != "" {
		found.Token = token
	}
	return found, found.check()
}

// check refuses an address that is not an HTTP URL.
func (t Target) check() error {
	base, err := url.Parse(t.URL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return fault.New(fault.Invalid, "target %s: %q is not the URL of a server", t.Name, t.URL).
			WithHint("use https://host[:port]")
	}
	return nil
}

func (c *CLI) findTarget() (Target, error) {
	if strings.Contains(c.Target, "://") {
		return Target{Name: "url", URL: c.Target}, nil
	}
	if c.Target == "" {
		if address := c.Getenv("DAGCTL_URL"); address != "" {
			return Target{Name: "DAGCTL_URL", URL: address}, nil
		}
	}
	file, err := c.readTargets()
	if err != nil {
		return Target{}, err
	}

	if name := c.Target; name != "" {
		if t, ok := file.Targets[name]; ok {
			t.Name = name
			return t, nil
		}
		if name != "dev" {
			return Target{}, fault.New(fault.NotFound, "there is no target %q", name).
				WithHint("`dagctl target list` lists the targets, `dagctl target add` adds one")
		}
	} else if t, ok := file.Targets[file.Current]; ok {
		t.Name = file.Current
		return t, nil
	}
	return c.devTarget()
}

// DevServer announces a running dev server to commands, in a file of its data folder beside the one with its token.
type DevServer struct {
	URL string `json:"url"`
	PID int    `json:"pid"`
}

// The files in the data folder of a dev server by which commands find it and its token.
const (
	DevServerFile = "server.json"
	DevTokenFile  = "token"
)

// devTarget looks for the data folder of a running dev server in this folder and in those above it.
func (c *CLI) devTarget() (Target, error) {
	none := fault.New(fault.Unavailable,
		"no server to talk to: no --target, no DAGCTL_URL, no current target, no dev server running here").
		WithHint("start one with `dagctl dev`, or name one with `dagctl target add NAME --url URL`")
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return Target{}, fmt.Errorf("data folder: %w", err)
	}

	for {
		text, err := os.ReadFile(filepath.Join(dir, DevServerFile))
		if err == nil {
			var s DevServer
			if err := json.Unmarshal(text, &s); err != nil {
				return Target{}, fmt.Errorf("%s: %w", filepath.Join(dir, DevServerFile), err)
			}
			token, err := os.ReadFile(filepath.Join(dir, DevTokenFile))
			if err != nil {
				return Target{}, fmt.Errorf("token of the dev server: %w", err)
			}
			return Target{Name: "dev", URL: s.URL, Token: strings.TrimSpace(string(token))}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return Target{}, fmt.Errorf("look for a dev server: %w", err)
		}

		above := filepath.Join(filepath.Dir(filepath.Dir(dir)), filepath.Base(dir))
		if above == dir || filepath.IsAbs(c.DataDir) {
			return Target{}, none
		}
		dir = above
	}
}

// targetsPath returns the path of the file with the user's targets.
func (c *CLI) targetsPath() (string, error) {
	if path := c.Getenv("DAGCTL_CONFIG"); path != "" {
		return path, nil
	}
	folder := c.Getenv("XDG_CONFIG_HOME")
	if folder == "" {
		home := c.Getenv("HOME")
		if home == "" {
			return "", fault.New(fault.Invalid,
				"no place to keep targets: none of DAGCTL_CONFIG, XDG_CONFIG_HOME and HOME is set")
		}
		folder = filepath.Join(home, ".config")
	}
	return filepath.Join(folder, "dagctl", "config.yaml"), nil
}

func (c *CLI) readTargets() (targetFile, error) {
	var file targetFile
	path, err := c.targetsPath()
	if err != nil {
		return file, nil //nolint:nilerr // without a place there are no targets, which only `target add` needs
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, fmt.Errorf("read targets: %w", err)
	}

	if len(bytes.TrimSpace(text)) == 0 {
		return file, nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return file, fault.New(fault.Invalid, "%s: %w", path, err)
	}
	return file, nil
}

// writeTargets replaces the file with the targets. Only its owner may read it, because it holds tokens.
func (c *CLI) writeTargets(file targetFile) error {
	path, err := c.targetsPath()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return fmt.Errorf("write targets: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write targets: %w", err)
	}
	return WritePrivate(path, text)
}

// WritePrivate replaces a file in one step. At no time can other accounts read it.
func WritePrivate(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// TargetFor returns the target for an address: the one that has it, with its token, or a new one by a name, or else by
// its host.
func (c *CLI) TargetFor(address, name string) (Target, error) {
	address = strings.TrimRight(address, "/")
	file, err := c.readTargets()
	if err != nil {
		return Target{}, err
	}
	if name == "" {
		for _, known := range slices.Sorted(maps.Keys(file.Targets)) {
			if strings.TrimRight(file.Targets[known].URL, "/") == address {
				name = known
			}
		}
	}

	t := Target{Name: name, URL: address}
	if err := t.check(); err != nil {
		return Target{}, err
	}
	if base, err := url.Parse(address); t.Name == "" && err == nil {
		t.Name = base.Host
	}
	if known := file.Targets[t.Name]; strings.TrimRight(known.URL, "/") == address {
		t.Token = known.Token
	}
	return t, nil
}

// KeepTarget stores a target with its token, and makes it the current one if it has a token.
func (c *CLI) KeepTarget(t Target) error {
	file, err := c.readTargets()
	if err != nil {
		return err
	}
	if file.Targets == nil {
		file.Targets = map[string]Target{}
	}
	file.Targets[t.Name] = t
	if t.Token != "" {
		file.Current = t.Name
	}
	return c.writeTargets(file)
}
