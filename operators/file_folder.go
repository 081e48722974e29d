package operators

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// folder is what a file source reads: a root that no link leads out of, and the path within it.
type folder struct {
	root *os.Root
	file string // the only file, if the config names a file
}

// ErrNoFolders is the error of file sources of an org to which the server's config gives no folder.
var ErrNoFolders error = fault.New(fault.Forbidden, "the org's sources may not read any folder on this server").
	WithHint("an admin names them in the server's config, as `file_roots` of the org")

// openFolder opens the config's path in the folders that the org may read. A relative path is taken from the first
// folder that has it; an absolute one must lie in one of them.
func openFolder(roots []string, c fileSourceConfig) (*folder, error) {
	if len(roots) == 0 {
		return nil, ErrNoFolders
	}
	for _, root := range roots {
		name := filepath.FromSlash(c.Path)
		if filepath.IsAbs(name) {
			relative, err := filepath.Rel(root, name)
			if err != nil || !filepath.IsLocal(relative) {
				continue
			}
			name = relative
		}
		if !filepath.IsLocal(name) {
			return nil, escapes(c.Path)
		}
		f, err := openIn(root, name, c)
		if err != nil || f != nil {
			return f, err
		}
	}

	if filepath.IsAbs(c.Path) {
		return nil, escapes(c.Path)
	}
	return nil, fault.New(fault.NotFound, "path %s is not in any of the folders that the org's sources may read",
		c.Path)
}

// InFolders returns an error if a path leads out of all folders, as far as its text says so: links are followed when it
// is opened.
func InFolders(roots []string, path string) error {
	name := filepath.FromSlash(path)
	for _, root := range roots {
		relative := name
		if filepath.IsAbs(name) {
			var err error
			if relative, err = filepath.Rel(root, name); err != nil {
				continue
			}
		}
		if filepath.IsLocal(relative) {
			return nil
		}
	}
	return escapes(path)
}

func escapes(name string) error {
	return Permanent(fault.New(fault.Forbidden, "path %s lies outside the folders that the org's sources may read",
		name).
		WithHint("give a path inside one of them, relative to it or absolute"))
}

// openIn returns nil if the root has no such name.
func openIn(root, name string, c fileSourceConfig) (*folder, error) {
	outer, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open source folder: %w", err)
	}
	info, err := outer.Stat(name)
	switch {
	case os.IsNotExist(err):
		return nil, outer.Close()
	case err != nil:
		outer.Close()
		return nil, fmt.Errorf("open %s: %w", c.Path, err)
	case info.Mode().IsRegular() && c.Pattern == "":
		return &folder{root: outer, file: filepath.ToSlash(name)}, nil
	case !info.IsDir():
		outer.Close()
		return nil, Permanent(fault.New(fault.Invalid, "path %s is not a folder, but the config has a pattern", c.Path))
	case c.Pattern == "":
		outer.Close()
		return nil, Permanent(fault.New(fault.Invalid, "path %s is a folder", c.Path).
			WithHint("give a pattern, such as *.csv"))
	}
	defer outer.Close()

	inner, err := outer.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.Path, err)
	}
	return &folder{root: inner}, nil
}

var errNoPartitions = fault.New(fault.Invalid, "a single file cannot make partitions").
	WithHint("give a folder and a pattern with {date}, {month}, {year} or {key}")

// groups returns the matching files by partition, and those whose names give none.
func (f *folder) groups(
	ctx context.Context, c fileSourceConfig, by dag.Partitioning,
) (groups map[string][]string, left LeftOut, err error) {
	if f.file != "" {
		if by.Kind != dag.Unpartitioned {
			return nil, left, Permanent(errNoPartitions)
		}
		return map[string][]string{dag.WholeKey: {f.file}}, left, nil
	}

	p, err := CompileNamePattern(c.Pattern)
	if err != nil {
		return nil, left, Permanent(fault.New(fault.Invalid, "pattern: %w", err))
	}
	if err := p.Partitions(by); err != nil {
		return nil, left, Permanent(err)
	}
	groups = map[string][]string{}
	err = fs.WalkDir(f.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case os.IsNotExist(err) && name != ".":
			return nil // deleted since it was listed
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.Count(name, "/")+1 >= p.depth:
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}

		switch key, ok, err := p.PartitionOf(name, by); {
		case err != nil:
			left.Add(err)
		case ok:
			groups[key] = append(groups[key], name)
		}
		return nil
	})
	return groups, left, err
}

// pattern is a compiled `pattern`.
type pattern struct {
	expression *regexp.Regexp
	depth      int // number of parts of the paths that it matches
}

var placeholders = map[string]string{
	"{date}":    `(?P<date>\d{4}-\d{2}-\d{2})`,
	"{month}":   `(?P<month>\d{4}-\d{2})`,
	"{quarter}": `(?P<quarter>\d{4}-Q[1-4])`,
	"{year}":    `(?P<year>\d{4})`,
	"{hour}":    `(?P<hour>[01]\d|2[0-3])`,
	"{minute}":  `(?P<minute>[0-5]\d)`,
	"{key}":     `(?P<key>[^/]+)`,
}

var patternPart = late.Pattern(`\{[^{}]*\}|\*|\?|[^{}*?]+|[{}]`)

func compilePattern(text string) (pattern, error) {
	if text == "" {
		return pattern{}, nil
	}
	if text != path.Clean(text) || path.IsAbs(text) || strings.HasPrefix(text, "../") || text == ".." {
		return pattern{}, fmt.Errorf("%q is not a plain relative path", text)
	}

	var b strings.Builder
	seen := map[string]bool{}
	for _, part := range patternPart.FindAllString(text, -1) {
		switch {
		case part == "*":
			b.WriteString(`[^/]*`)
		case part == "?":
			b.WriteString(`[^/]`)
		case placeholders[part] != "":
			if seen[part] {
				return pattern{}, fmt.Errorf("%s appears twice", part)
			}
			seen[part] = true
			b.WriteString(placeholders[part])
		case strings.ContainsAny(part, "{}"):
			return pattern{}, fmt.Errorf("unknown placeholder %s; use {date}, {hour}, {minute}, {month}, "+
				"{quarter}, {year} or {key}", part)
		default:
			b.WriteString(regexp.QuoteMeta(part))
		}
	}

	expression, err := regexp.Compile("^" + b.String() + "$")
	return pattern{expression: expression, depth: strings.Count(text, "/") + 1}, err
}

// found is the values of the placeholders in one path.
type found map[string]string

func (p pattern) match(name string) (found, bool) {
	groups := p.expression.FindStringSubmatch(name)
	if groups == nil {
		return nil, false
	}
	f := found{}
	for i, placeholder := range p.expression.SubexpNames() {
		if placeholder != "" {
			f[placeholder] = groups[i]
		}
	}
	return f, true
}

// exampleOf returns the placeholders of a pattern with values that files may give them.
func exampleOf(pattern string) found {
	f := found{}
	values := found{"date": "2026-01-31", "month": "2026-01", "quarter": "2026-Q1", "year": "2026", "hour": "23",
		"minute": "59", "key": "a"}
	for name, value := range values {
		if strings.Contains(pattern, "{"+name+"}") {
			f[name] = value
		}
	}
	return f
}

// partition returns the key of the partition that a file belongs to.
func (f found) partition(by dag.Partitioning) (string, error) {
	switch by.Kind {
	case dag.Unpartitioned:
		return dag.WholeKey, nil
	case dag.ByKey:
		for _, placeholder := range []string{"key", "date", "month", "quarter", "year"} {
			if f[placeholder] != "" {
				return f[placeholder], nil
			}
		}
		return "", fault.New(fault.Invalid, "partition_by key needs {key} in the pattern")
	case dag.ByTime:
		return f.timeKey(by.Unit)
	default:
		return "", fault.New(fault.Invalid, "a source of files cannot partition by %s", by.Kind)
	}
}

// timeKey returns the key of the time partition that a file belongs to, by the most exact time in its name.
func (f found) timeKey(unit dag.TimeUnit) (string, error) {
	var (
		given  dag.TimeUnit
		layout string
		text   string
	)
	switch {
	case f["date"] != "" && f["hour"] != "" && f["minute"] != "":
		given, layout, text = dag.Minute, "2006-01-02 15:04", f["date"]+" "+f["hour"]+":"+f["minute"]
	case f["date"] != "" && f["hour"] != "":
		given, layout, text = dag.Hour, "2006-01-02 15", f["date"]+" "+f["hour"]
	case f["date"] != "":
		given, layout, text = dag.Day, "2006-01-02", f["date"]
	case f["month"] != "":
		given, layout, text = dag.Month, "2006-01", f["month"]
	case f["quarter"] != "":
		year, quarter, _ := strings.Cut(f["quarter"], "-")
		given, layout = dag.Quarter, "2006-01"
		text = year + map[string]string{"Q1": "-01", "Q2": "-04", "Q3": "-07", "Q4": "-10"}[quarter]
	case f["year"] != "":
		given, layout, text = dag.Year, "2006", f["year"]
	}
	if given == "" || given != unit && !dag.Nests(given, unit) {
		return "", fault.New(fault.Invalid, "partition_by time: %s needs other placeholders in the pattern: %s",
			unit, placeholdersFor(unit))
	}

	at, err := time.Parse(layout, text)
	if err != nil {
		return "", fault.New(fault.Invalid, "%s is not a date", text).
			WithHint("rename the file or move it away")
	}
	return unit.KeyOf(at), nil
}

// placeholdersFor names the placeholders that a pattern needs for partitions of a unit.
func placeholdersFor(unit dag.TimeUnit) string {
	switch unit.Named() {
	case dag.Minute:
		return "{date}, {hour} and {minute}"
	case dag.Hour:
		return "{date} and {hour}"
	case dag.Month:
		return "{date} or {month}"
	case dag.Quarter:
		return "{date}, {month} or {quarter}"
	case dag.Year:
		return "{date}, {month}, {quarter} or {year}"
	}
	return "{date}"
}
