//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"compress/gzip"
	bits "encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/duck"
)

// attackByConfig sends DAG files whose texts would be more than texts if they were spliced into SQL, paths or URLs.
func (a *arena) attackByConfig(t *testing.T) {
	injections := []string{
		`INTEGER); COPY (SELECT 1) TO '/tmp/x'; --`, `INTEGER, x := (SELECT content FROM read_text('/etc/passwd'))`,
		`VARCHAR DEFAULT getenv('PATH')`, `INTEGER'; DROP TABLE tasks; --`, `"x"`, `STRUCT(a INTEGER`, `INTEGER[`,
		`ENUM (SELECT content FROM read_text('/etc/passwd'))`, `DECIMAL(99999999999999, 1)`, `x.y.z`, "INT\x00EGER",
		strings.Repeat("STRUCT(a ", 5000) + "INTEGER" + strings.Repeat(")", 5000), "INTEGER" + strings.Repeat("[]",
			50_000),
		`INTEGER /* `, `INTEGER --`, `NULL`, `SELECT`, ``, `INTERVAL (SELECT 1)`, `INTEGER USING COMPRESSION x`,
	}
	options := []string{
		`delimiter: "'"`, `delimiter: "');--"`, `delimiter: "\u0000"`, `delimiter: "\n"`, `delimiter: "ü"`,
		`quote: "''"`,
		`quote: "\\"`, `null_string: "'; DROP TABLE x; --"`, `date_format: "%') --"`, `date_format: "` +
			strings.Repeat("%Y", 20_000) + `"`, `timestamp_format: "'"`, `encoding: "utf-8'; --"`,
		`encoding: "../../x"`,
		`comment: "'"`, `skip_lines: 9223372036854775807`, `skip_lines: -1`, `skip_lines: 1e99`,
		`decimal_separator: "'"`,
		`columns: ["n\"; DROP TABLE x; --"]`, `columns: [""]`, `optional_columns: ["'"]`, `records: "a[0]"`,
		`header: "yes'"`, `on_bad_rows: "drop"`, `filename: true`, `types: { "n\"; --": INTEGER }`,
	}
	var sources []attackJob
	for _, path := range []string{"../../../../etc/passwd", "/etc/passwd", "landing/../../x", "", ".", "..", "a\x00b",
		strings.Repeat("a/", 5000), "~/.ssh", "$HOME", "file:///etc/passwd", "s3://x/y", "*", "[", "\\\\host\\x"} {
		sources = append(sources, attackJob{"path " + path, fromFile(yamlText(path), "csv", "")})
	}
	for _, pattern := range []string{"../*", "/etc/*", "**", "{date", "{nope}", "[", "{date}{date}", "*/../../*",
		"\x00",
		strings.Repeat("*", 2000), strings.Repeat("{key}", 100)} {
		sources = append(sources, attackJob{"pattern " + pattern, fromFile(".", "csv",
			", pattern: "+yamlText(pattern))})
	}
	for _, in := range injections {
		sources = append(sources, attackJob{"type " + in, fromFile("sales.csv", "csv",
			", types: { n: "+yamlText(in)+" }")})
	}
	for _, o := range options {
		sources = append(sources, attackJob{o, fromFile("sales.csv", "csv", ", "+o)})
	}
	t.Run("sources", func(t *testing.T) {
		for _, r := range a.attackByJobs(t, "types and options of files", sources) {
			t.Logf("%.60q %s %.200q", r.name, r.Status, r.Error)
		}
	})

	var urls []attackJob
	for _, url := range []string{a.url + "/healthz", strings.Replace(a.url, "127.0.0.1", "localhost", 1),
		strings.Replace(a.url, "127.0.0.1", "[::1]", 1), strings.Replace(a.url, "127.0.0.1", "[::ffff:127.0.0.1]", 1),
		strings.Replace(a.url, "127.0.0.1", "[::ffff:0:7f00:1]", 1), strings.Replace(a.url, "127.0.0.1", "0.0.0.0", 1),
		strings.Replace(a.url, "127.0.0.1", "2130706433", 1), strings.Replace(a.url, "127.0.0.1", "0x7f.1", 1),
		strings.Replace(a.url, "127.0.0.1", "127.1", 1), strings.Replace(a.url, "127.0.0.1", "[64:ff9b::7f00:1]", 1),
		strings.Replace(a.url, "http://", "http://user:password@", 1), "http://169.254.169.254/latest/meta-data/",
		"http://[fd00:ec2::254]/", "http://10.0.0.1/", "file:///etc/passwd", "ftp://127.0.0.1/",
		"gopher://127.0.0.1/_x",
		"unix:///var/run/docker.sock", "//127.0.0.1/", "http://127.0.0.1:5432/", "http://\x00/", "http://a b/",
		"http://",
		"http://127.0.0.1:99999/", "http://%31%32%37.0.0.1/"} {
		urls = append(urls, attackJob{"url " + url, "operator: http_source, source: { kind: poll, every: 1h }, " +
			"max_attempts: 1, timeout_seconds: 5, config: { format: csv, url: " + yamlText(url) + " }"})
	}
	t.Run("URLs", func(t *testing.T) {
		for _, r := range a.attackByJobs(t, "addresses", urls) {
			assert.Equal(t, "dead", r.Waiting, "%s: %s", r.name, r.Result)
			assert.NotContains(t, r.Error, "refused", r.name) // what listens there is nobody's business
		}
	})

	var reads []attackJob
	for _, where := range []string{`{ "n\" OR 1=1 --": 1 }`, `{ n: "1 OR 1=1" }`, `{ name: "' OR '1'='1" }`,
		`{ name: ["one') OR ('1'='1"] }`, `{ "": 1 }`, `{ "n; DROP VIEW sales": 1 }`, `{ n: 1e400 }`, `{ n: ` +
			strings.Repeat("9", 5000) + ` }`, `{ day: "2026-01-01' OR 'x" }`, `{ day: "infinity" }`, `{ nope: 1 }`,
		`{ n: { a: 1 } }`, `{ n: [[1]] }`, `{ name: "\u0000" }`, `{ rowid: 0 }`, `{ filename: "x" }`, `[1]`, `x`,
		`{ name: ["` + strings.Repeat(`x", "`, 20_000) + `x"] }`, `{ "getenv('PATH')": "x" }`} {
		reads = append(reads, attackJob{"where " + where, "operator: sql, max_attempts: 1, inputs: [{ from: { " +
			"dataset: " +
			"sales }, as: s, where: " + where + " }], config: { query: SELECT * FROM s }"})
	}
	for _, check := range []string{`not_null: ["n\" OR 1=1 --"]`, `unique: ["n\"), (SELECT 1"]`, `not_null: [""]`,
		`accepted_values: { column: n, values: ["1) OR (1=1"] }`, `accepted_values: { column: "n\"", values: [1] }`,
		`accepted_values: { column: name, values: ["x'; DROP TABLE t; --"] }`,
		`row_count: { min: 99999999999999999999 }`,
		`row_count: { min: 1e400 }`, `freshness: { column: "day\" --", within: 2h }`,
		`freshness: { column: day, within: "2h' OR '1" }`, `freshness: { column: day, within: 99999999999h }`,
		`relationships: { column: n, to: { input: "sales\"; --", column: n } }`,
		`relationships: { column: n, to: { input: sales, column: "n\" OR \"1" } }`, `{ name: "'; --", sql: SELECT 1 }`,
		`unique: ["` + strings.Repeat(`n", "`, 10_000) + `n"]`} {
		reads = append(reads, attackJob{"check " + check, fromSales + "config: { query: FROM sales }, checks: [{ " +
			strings.Trim(check, "{} ") + " }]"})
	}
	for _, as := range []string{`"x\"; DROP VIEW y; --"`, `"read_csv('/etc/passwd')"`, `"duckdb_settings"`, `"main.x"`,
		`"../x"`, `""`, `"` + strings.Repeat("x", 10_000) + `"`} {
		reads = append(reads, attackJob{"as " + as, "operator: sql, max_attempts: 1, inputs: [{ from: { dataset: " +
			"sales }, " +
			"as: " + as + " }], config: { query: " + yamlText("FROM "+as) + " }"})
	}
	t.Run("where", func(t *testing.T) { a.attackByJobs(t, "where, checks and names", reads) })
	t.Run("documents", a.attackByDocuments)
}

// fromFile returns a job that reads a file of acme's.
func fromFile(path, format, more string) string {
	return fmt.Sprintf("operator: file_source, source: { kind: poll, every: 1h }, max_attempts: 1, "+
		"timeout_seconds: 20, "+
		"config: { path: %s, format: %s%s }", path, format, more)
}

// attackByDocuments sends DAG files that cost more than they look.
func (a *arena) attackByDocuments(t *testing.T) {
	many := strings.Repeat
	manual := "  - { name: j, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [x] }"
	aliases := "a0: &a0 [x, x]\n"
	for i := range 40 {
		aliases += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	for name, yaml := range map[string]string{
		"aliases": aliases, "merges": "a: &a { <<: *a }\n", "nesting": many("[", 100_000), "maps": many("{a: ", 50_000),
		"indents": many("- ", 100_000), "a long line": "name: " + many("x", 1<<20), "keys": many("a: 1\n", 100_000),
		"jobs":    "name: x\njobs:\n" + many("  - { name: j, operator: sql, config: { query: SELECT 1 } }\n", 20_000),
		"anchors": many("&a ", 50_000) + "x", "tags": "!!binary " + many("A", 1<<20),
		"a tag":     "!!python/object:os.system x",
		"documents": many("---\n", 100_000), "NULs": "name: \"" + many(`\0`, 1000) + "\"",
		"a BOM": "\ufeff\ufeffname: x",
		"variables": "name: x\nvars: { a: { default: \"" + many("${var.a}", 10_000) +
			"\" } }\ndescription: ${var.a}\njobs: []",
		"a reference": "name: x\njobs:\n" + manual + ", payload_schema: { $ref: 'file:///etc/passwd' } }\n",
		"a URL":       "name: x\njobs:\n" + manual + ", payload_schema: { $ref: '" + a.url + "/v1/whoami' } }\n",
		"a meta":      "name: x\njobs:\n" + manual + ", payload_schema: { $schema: 'http://169.254.169.254/' } }\n",
		"a cycle":     "name: x\njobs:\n" + manual + ", payload_schema: { $ref: '#' } }\n",
		"a pattern": "name: x\njobs:\n" + manual + ", payload_schema: { pattern: '" + many("(a+)+", 1000) +
			"$' } }\n",
		"schemas": "name: x\njobs:\n" + manual + ", payload_schema: " + many("{ not: ", 5000) + "{}" + many(" }",
			5000) + " }\n",
		"numbers":   "name: x\njobs:\n" + manual + ", priority: 1" + many("0", 100_000) + " }\n",
		"exponents": "name: x\njobs:\n" + manual + ", max_attempts: 1e999999999 }\n",
		"a file": "name: x\njobs:\n  - { name: j, operator: sql, inputs: [], config: { query_file: " +
			"../../../etc/passwd } }\n",
		"a schedule": "name: x\njobs:\n  - { name: j, operator: command, source: { kind: cron, schedule: '" +
			many("*,", 50_000) + "* * * * *' }, config: { argv: [x] } }\n",
		"a zone": "name: x\njobs:\n  - { name: j, operator: command, source: { kind: manual }, partition_by: " +
			"{ time: day, timezone: ../../../etc/passwd }, config: { argv: [x] } }\n",
	} {
		a.plan(t, "documents", name, yaml)
	}
	a.send(t, "documents", "a body of brackets", http.MethodPost, "/v1/dags/attack/plan", "application/json",
		strings.NewReader(many("[", 1<<20)))
	a.send(t, "documents", "a body of keys", http.MethodPost, "/v1/dags/attack/plan", "application/json",
		strings.NewReader(`{"yaml": "name: x"`+many(`, "yaml": "x"`, 50_000)+"}"))
}

// attackByFiles lets sources read files that are more than they seem, and uploads archives.
func (a *arena) attackByFiles(t *testing.T) {
	t.Run("archives", func(t *testing.T) {
		for name, body := range hostileArchives(t) {
			status, _ := a.send(t, "archives", name, http.MethodPost, "/v1/udf-bundles", "application/zip",
				bytes.NewReader(body))
			assert.GreaterOrEqual(t, status, 400, name)
		}
	})

	var jobs []attackJob
	add := func(name, format string, content []byte) {
		path := fmt.Sprintf("hostile%d.%s", len(jobs), name)
		require.NoError(t, os.WriteFile(filepath.Join(a.roots, path), content, 0o600))
		jobs = append(jobs, attackJob{name, fromFile(yamlText(path), format, "")})
	}
	texts, formats := hostileTexts(), []string{"csv", "ndjson", "json"}
	for i, name := range slices.Sorted(maps.Keys(texts)) {
		for n, format := range formats {
			if *allAttacks || n == i%len(formats) {
				add(name+"."+format, format, texts[name])
			}
		}
	}
	for name, content := range hostileZips(t) {
		add(name, "csv", content)
	}
	for name, content := range hostileParquet(t) {
		add(name, "parquet", content)
	}
	link := func(name string, make func(path string) error) {
		path := fmt.Sprintf("hostile%d.csv", len(jobs))
		require.NoError(t, make(filepath.Join(a.roots, path)))
		jobs = append(jobs, attackJob{name, fromFile(path, "csv", "")})
	}
	for _, target := range []string{"/etc/passwd", a.secret, "../../../../../../../../etc/passwd", "/proc/self/environ",
		"/dev/zero", "/dev/stdin", filepath.Dir(a.secret), "hostile-loop"} {
		link("a link to "+target, func(path string) error { return os.Symlink(target, path) })
	}
	link("a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) })
	link("a folder", func(path string) error { return os.Mkdir(path, 0o700) })
	link("a sparse file", func(path string) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return os.Truncate(path, 1<<28)
	})
	for _, r := range a.attackByJobs(t, "files", jobs) {
		t.Logf("%.60q %s %.200q", r.name, r.Status, r.Error)
	}
}

// hostileTexts are no good files of rows.
func hostileTexts() map[string][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	text := func(s string) []byte { return []byte(s) }
	many := strings.Repeat
	return map[string][]byte{
		"an endless line": text(many("a", 24<<20)), "noise": noise, "NULs": text(many("\x00", 1<<20)),
		"a million columns": text(many("a,", 1_000_000) + "\n" + many("1,", 1_000_000)),
		"a quote":           text("a,b\n\"" + many("x", 8<<20)), "quotes": text(many(`"`, 4<<20)),
		"brackets": text(many("[", 4<<20)), "braces": text(many(`{"a":`, 1<<20)),
		"lists": text(many("[", 9000) + many("]", 9000)), "keys": text("{" + many(`"a":1,`, 500_000) + `"b":1}`),
		"a number":  text(`{"a": 1` + many("0", 2<<20) + "}\n"),
		"not UTF-8": text("a,b\n\xff\xfe,1\n{\"a\":\"\xff\"}"), "a BOM": text("\xff\xfea\x00,\x00b\x00\n\x00"),
		"empty lines": text(many("\n", 4<<20)), "many names": text("{" + many(`"a`, 1) + many("b", 2<<20) + `": 1}`),
		"injection": text("a,\"b\"\"; DROP TABLE x; --\"\n1,'; DROP TABLE x; --\n"),
	}
}

// hostileZips are compressed files that are more than they seem, or less.
func hostileZips(t *testing.T) map[string][]byte {
	var bomb bytes.Buffer
	w, err := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	require.NoError(t, err)
	for range 256 { // a quarter of a gigabyte in one
		_, err := w.Write(make([]byte, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	zstd := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, 0, 0, 0, 0, 0, 0, 0, 0x40) // it claims 4 exabytes
	// Blocks of 128 KiB of one byte each.
	for range 2000 {
		zstd = append(zstd, 0x02, 0x00, 0x10, 0x00)
	}
	return map[string][]byte{"a bomb.csv.gz": bomb.Bytes(), "cut off.csv.gz": bomb.Bytes()[:1000],
		"no archive.csv.gz": []byte("a,b\n1,2\n"), "a bomb.csv.zst": zstd, "no archive.csv.zst": []byte("a,b\n1,2\n"),
		"twice.csv.gz": append(bytes.Clone(bomb.Bytes()[:bomb.Len()-4]), bomb.Bytes()...)}
}

// hostileParquet are Parquet files whose footers lie. internal/footer has tests of more of them.
func hostileParquet(t *testing.T) map[string][]byte {
	path := filepath.Join(t.TempDir(), "good.parquet")
	session, err := duck.Open(t.Context(), duck.Config{AllowedPaths: []string{path}, Threads: 1})
	require.NoError(t, err)
	_, err = session.CopyToParquet(t.Context(), "SELECT range AS n, 'x' || range AS name, [range] AS l FROM "+
		"range(1000)",
		path)
	require.NoError(t, err)
	require.NoError(t, session.Close())
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	footer := int(bits.LittleEndian.Uint32(good[len(good)-8:]))
	begin := len(good) - 8 - footer

	all := map[string][]byte{"nothing": {}, "magic": []byte("PAR1"), "magic twice": []byte("PAR1PAR1"),
		"magic and length": []byte("PAR1\x00\x00\x00\x00PAR1"), "text": []byte("a,b\n1,2\n"),
		"cut off": good[:len(good)/2], "its footer only": good[begin:], "twice": append(bytes.Clone(good), good...)}
	for _, n := range []uint32{0, 1, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		lies := bytes.Clone(good)
		bits.LittleEndian.PutUint32(lies[len(lies)-8:], n)
		all[fmt.Sprint("a footer of ", n)] = lies
	}
	encrypted := bytes.Clone(good)
	copy(encrypted[len(encrypted)-4:], "PARE")
	all["encrypted"] = encrypted

	random := rand.New(rand.NewPCG(3, 4))
	footers, pages := 6, 2
	if *allAttacks {
		footers, pages = 100, 50
	}
	for i := range footers {
		broken := bytes.Clone(good)
		for range 1 + i%8 {
			broken[begin+random.IntN(footer)] = byte(random.Uint32())
		}
		all[fmt.Sprint("a broken footer ", i)] = broken
	}
	for i := range pages {
		broken := bytes.Clone(good)
		for range 20 {
			broken[4+random.IntN(begin-4)] ^= byte(1 + random.IntN(255))
		}
		all[fmt.Sprint("broken pages ", i)] = broken
	}
	named := map[string][]byte{}
	for name, content := range all {
		named[name+".parquet"] = content
	}
	return named
}
