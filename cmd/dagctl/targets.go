package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/fault"
)

// target is a server to talk to.
type target struct {
	Name  string `yaml:"-"`
	URL   string `yaml:"url"`
	Token string `yaml:"token,omitempty"`
}

// targetFile is the user's list of servers.
type targetFile struct {
	Current string            `yaml:"current,omitempty"`
	Targets map[string]target `yaml:"targets,omitempty"`
}

// resolveTarget decides which server a command talks to: --target, else DAGCTL_URL, else the current target, else a
// running dev server. DAGCTL_TOKEN wins over a stored token.
func (c *cli) resolveTarget() (target, error) {
	found, err := c.findTarget()
	if err != nil {
		return target{}, err
	}
	if token := c.getenv("DAGCTL_TOKEN"); token != "" {
		found.Token = token
	}
	return found, found.check()
}

// check refuses what is not the address of a server.
func (t target) check() error {
	base, err := url.Parse(t.URL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return fault.New(fault.Invalid, "target %s: %q is not the URL of a server", t.Name, t.URL).WithHint("use https://host[:port]")
	}
	return nil
}

func (c *cli) findTarget() (target, error) {
	if strings.Contains(c.target, "://") {
		return target{Name: "url", URL: c.target}, nil
	}
	if c.target == "" {
		if address := c.getenv("DAGCTL_URL"); address != "" {
			return target{Name: "DAGCTL_URL", URL: address}, nil
		}
	}
	file, err := c.readTargets()
	if err != nil {
		return target{}, err
	}
	if name := c.target; name != "" {
		if t, ok := file.Targets[name]; ok {
			t.Name = name
			return t, nil
		}
		if name != "dev" {
			return target{}, fault.New(fault.NotFound, "there is no target %q", name).
				WithHint("`dagctl target list` shows those there are, `dagctl target add` makes one")
		}
	} else if t, ok := file.Targets[file.Current]; ok {
		t.Name = file.Current
		return t, nil
	}
	return c.devTarget()
}

// devServer is how commands find a running dev server: a file in its data folder, beside the one with its token.
type devServer struct {
	URL string `json:"url"`
	PID int    `json:"pid"`
}

const devServerFile = "server.json"

// devTarget looks for the data folder of a dev server here and in the folders above.
func (c *cli) devTarget() (target, error) {
	none := fault.New(fault.Unavailable, "no server to talk to: no --target, no DAGCTL_URL, no current target, no dev server running here").
		WithHint("start one with `dagctl dev`, or name one with `dagctl target add NAME --url URL`")
	dir, err := filepath.Abs(c.dataDir)
	if err != nil {
		return target{}, fmt.Errorf("data folder: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, devServerFile))
		if err == nil {
			var s devServer
			if err := json.Unmarshal(text, &s); err != nil {
				return target{}, fmt.Errorf("%s: %w", filepath.Join(dir, devServerFile), err)
			}
			token, err := os.ReadFile(filepath.Join(dir, devTokenFile))
			if err != nil {
				return target{}, fmt.Errorf("token of the dev server: %w", err)
			}
			return target{Name: "dev", URL: s.URL, Token: strings.TrimSpace(string(token))}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return target{}, fmt.Errorf("look for a dev server: %w", err)
		}
		above := filepath.Join(filepath.Dir(filepath.Dir(dir)), filepath.Base(dir))
		if above == dir || filepath.IsAbs(c.dataDir) {
			return target{}, none
		}
		dir = above
	}
}

// targetsPath is where the user's targets are kept.
func (c *cli) targetsPath() (string, error) {
	if path := c.getenv("DAGCTL_CONFIG"); path != "" {
		return path, nil
	}
	folder := c.getenv("XDG_CONFIG_HOME")
	if folder == "" {
		home := c.getenv("HOME")
		if home == "" {
			return "", fault.New(fault.Invalid, "no place for targets: neither DAGCTL_CONFIG, XDG_CONFIG_HOME nor HOME is set")
		}
		folder = filepath.Join(home, ".config")
	}
	return filepath.Join(folder, "dagctl", "config.yaml"), nil
}

func (c *cli) readTargets() (targetFile, error) {
	var file targetFile
	path, err := c.targetsPath()
	if err != nil {
		return file, nil //nolint:nilerr // without a home there are no targets; that is not a fault until one is added
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

// writeTargets replaces the file whole, readable by its owner only, because it holds tokens.
func (c *cli) writeTargets(file targetFile) error {
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
	return writePrivate(path, text)
}

// writePrivate replaces a file in one step; at no time can others read it.
func writePrivate(path string, text []byte) error {
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
