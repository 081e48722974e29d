package testaws

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Function is a Lambda function in Node or Python.
type Function struct {
	Code        string            // an ES module that exports `handler`, or a Python module that has it
	Python      bool              // python3, whatever version the machine has
	Environment map[string]string // of the function
	Timeout     int               // in seconds; default 6
}

// Lambda starts an endpoint that has these functions, by name, and stops it with the test. Whoever has timed out is
// broken afterwards, which AWS's own is not: give what must time out a function of its own.
func Lambda(t testing.TB, functions map[string]Function) (endpoint string) {
	t.Helper()
	type definition struct {
		Handler     string            `json:"handler"`
		Runtime     string            `json:"runtime,omitempty"`
		Environment map[string]string `json:"environment,omitempty"`
		Timeout     int               `json:"timeout,omitempty"`
	}
	config := struct {
		Port      int                   `json:"port"`
		Folder    string                `json:"folder"`
		Functions map[string]definition `json:"functions"`
	}{Port: freePort(t), Folder: t.TempDir(), Functions: map[string]definition{}}
	for name, f := range functions {
		ending, runtime := ".mjs", ""
		if f.Python {
			ending, runtime = ".py", "python3.13" // the server runs python3, and wants a name that AWS knows
		}
		if err := os.WriteFile(filepath.Join(config.Folder, name+ending), []byte(f.Code), 0o600); err != nil {
			t.Fatal(err)
		}
		config.Functions[name] = definition{Handler: name + ".handler", Runtime: runtime, Environment: f.Environment, Timeout: f.Timeout}
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd, life := node(t, "serverless-offline", string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start serverless-offline: %v", err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatalf("start serverless-offline: %v", err)
	}
	said := bufio.NewScanner(out)
	said.Buffer(nil, 8<<20)
	if !said.Scan() || said.Text() != "ready" {
		t.Fatalf("start serverless-offline: it said %q", said.Text())
	}
	read := make(chan struct{})
	go func() { // what functions say is part of the test's log
		defer close(read)
		for said.Scan() {
			t.Logf("lambda: %s", said.Text())
		}
	}()
	t.Cleanup(func() {
		_ = life.Close()
		<-read
		_ = cmd.Wait()
	})
	return fmt.Sprintf("http://127.0.0.1:%d", config.Port)
}

// freePort is a port of the loopback that nobody listens on: the server cannot say which one it was given.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
