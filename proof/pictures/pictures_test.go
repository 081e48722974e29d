//go:build soak

package pictures_test

import (
	"bytes"
	"flag"
	"image"
	"image/png"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testbrowser"
)

var into = flag.String("into", "", "folder that the pictures are written to")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(processtest.Main(m))
}

// mails is a DAG that needs somebody: its job fails.
const mails = `name: mails
jobs:
  - name: greet
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    config: { argv: [/bin/sh, -c, "echo the mail server does not answer >&2; exit 1"] }
`

// delays is the query of the walk-through.
const delays = `SELECT day, sum(flights) AS flights, sum(delayed) AS delayed
FROM airport_delays GROUP BY day ORDER BY day`

// show is a browser that walks through pages.
type show struct {
	*testbrowser.Browser
	t      *testing.T
	url    string
	frames []frame
}

// TestPictures writes pictures of the pages, and an animation of a walk through them. It leaves nothing where no folder
// is given.
func TestPictures(t *testing.T) {
	dir, data := t.TempDir(), processtest.DataFolder(t)
	for _, example := range []string{"us-flights", "earthquakes"} {
		for _, part := range []string{"dag.yaml", "sql", "data"} {
			copyAll(t, filepath.Join("..", "..", "examples", example, part), filepath.Join(dir, example, part))
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "mails"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mails", "dag.yaml"), []byte(mails), 0o600))

	server := processtest.Dev(t, dir, data)
	run := func(args ...string) string { return processtest.Must(t, dir, append(args, "--data", data)...) }
	processtest.Eventually(t, "both examples serve", func() bool {
		one := processtest.Run(t, dir, "datasets", "preview", "airport_ranking", "--data", data)
		other := processtest.Run(t, dir, "datasets", "preview", "earthquakes", "--data", data)
		return strings.Contains(one.Out, "2001-01") && other.Code == 0
	})
	run("run", "mails/greet")
	run("pause", "earthquakes/feed", "--reason", "the feed is being moved")

	processtest.Eventually(t, "what it uses is counted", func() bool {
		return !strings.Contains(run("costs", "--output", "csv"), ",0,0,") && len(run("costs", "--output", "csv")) > 200
	})

	b := testbrowser.Start(t)
	address, err := url.Parse(server.URL)
	require.NoError(t, err)
	s := &show{Browser: b, t: t, url: "http://" + address.Host}
	b.Show(testbrowser.Looks[0])
	b.Open(server.URL)
	s.walk()
	if *into != "" {
		s.keep("walkthrough.gif", animation(s.frames))
	}

	for name, path := range map[string]string{"home": "/", "dag": "/dags/us-flights",
		"version": "/dags/us-flights/versions/1", "plan": "/dags/us-flights/plan",
		"job": "/dags/us-flights/jobs/airport_delays", "tasks": "/tasks", "dead": "/dead",
		"datasets": "/datasets?search=aiport+dely", "dataset": "/datasets/airport_delays",
		"lineage": "/datasets/airport_delays/lineage", "sources": "/sources", "costs": "/costs"} {
		for _, look := range testbrowser.Looks[:3] {
			b.Show(look)
			b.Open(s.url + path)
			file := name + "." + look.Name + ".png"
			if look.Name == "light" {
				file = name + ".png"
			}
			s.keep(file, s.picture())
		}
	}
}

// walk goes from what needs somebody to a change that is deployed, promoted and rolled back.
func (s *show) walk() {
	s.see("/", "Home says what needs somebody now, since when, why, and what helps.")
	s.see("/dags/us-flights", "A DAG: one YAML file. Its graph follows what runs.")
	s.see("/dags/us-flights/jobs/airport_delays", "A job: what it waits for, its tasks over time, its partitions.")
	s.see("/datasets?search=aiport+dely", "The catalogue forgives typing errors, and puts the best match first.")
	s.see("/datasets/airport_delays", "A dataset: rows, partitions, checks, versions, and who reads it.")
	s.see("/datasets/airport_delays/lineage", "Where it comes from, and what is made from it, over DAGs.")
	s.see("/datasets/airport_delays/lineage?column=delayed_percent", "Any column, traced through the SQL.")

	s.Open(s.url + "/query")
	s.Run("write a statement", chromedp.SetValue("textarea[name=sql]", delays, chromedp.ByQuery))
	s.Click("button.first")
	s.WaitText("#result", "rows")
	s.Run("look at the rows", chromedp.ScrollIntoView("#result", chromedp.ByQuery))
	s.keep("query.png", s.picture())
	s.frame("Query what you may read, all at one moment: rows, a chart, and files to take along.")

	s.see("/dead", "What failed is grouped by error: retry or skip all of it at once.")
	s.see("/dags/us-flights/plan", "A change begins with the document that serves…")
	s.see("/dags/us-flights/versions/1", "…and each version says who deployed it, and what it makes.")
	s.see("/costs", "What it all uses, by job, dataset, owner or DAG.")
	s.see("/sources", "Sources, and when they fire next.")
}

// see opens a page, and takes a frame of it.
func (s *show) see(path, caption string) {
	s.t.Helper()
	s.Open(s.url + path)
	s.frame(caption)
}

// caption puts a line of text over the foot of the page.
const caption = `(text => {
	document.getElementById("caption")?.remove();
	const line = document.createElement("div");
	line.id = "caption";
	line.textContent = text;
	Object.assign(line.style, {position: "fixed", left: 0, right: 0, bottom: 0, padding: "14px 24px", zIndex: 99,
		background: "#1b2230", color: "#fff", font: "18px/1.4 system-ui, sans-serif"});
	document.body.append(line);
	return true;
})`

// frame takes a frame of what the browser shows, with a caption.
func (s *show) frame(text string) {
	s.t.Helper()
	var ok bool
	s.Run("write a caption", chromedp.Evaluate(caption+"("+quoted(text)+")", &ok))
	s.frames = append(s.frames, frame{s.window(), 2 + len(text)/16})
}

// window returns what the window shows.
func (s *show) window() *image.Paletted {
	s.t.Helper()
	var shot []byte
	s.Run("look at the window", chromedp.CaptureScreenshot(&shot))
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(s.t, err)
	return reduced(picture)
}

// picture returns what the window shows as a small PNG.
func (s *show) picture() []byte {
	s.t.Helper()
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(s.t, encoder.Encode(&b, s.window()))
	return b.Bytes()
}

// keep writes a file, if there is a folder for it.
func (s *show) keep(name string, content []byte) {
	s.t.Helper()
	if *into == "" {
		return
	}
	require.NoError(s.t, os.MkdirAll(*into, 0o755))
	require.NoError(s.t, os.WriteFile(filepath.Join(*into, name), content, 0o644))
}

func copyAll(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	require.NoError(t, err)
	if info.IsDir() {
		require.NoError(t, os.CopyFS(to, os.DirFS(from)))
		return
	}
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	require.NoError(t, os.WriteFile(to, text, 0o600))
}
