package testaws

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/testserver"
)

// Function is a Lambda function in Node or Python.
type Function struct {
	Code        string            // an ES module that exports `handler`, or a Python module that has it
	Python      bool              // python3, whatever version the machine has
	Environment map[string]string // of the function
	Timeout     int               // in seconds; default 6
}

// Lambda starts an endpoint with these functions, by name, and stops it with the test. Unlike AWS's, a function that
// has timed out is broken afterwards: use a function of its own for what must time out.
func Lambda(t testing.TB, functions map[string]Function) (endpoint string) {
	t.Helper()
	endpoint, stop, err := ServeLambda(t.TempDir(), functions, func(line string) { t.Logf("lambda: %s", line) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	return endpoint
}

// ServeLambda starts an endpoint of the caller's own, which stop ends. It writes the functions to the folder and their
// output to log.
func ServeLambda(folder string, functions map[string]Function, log func(line string)) (
	endpoint string, stop func() error, err error) {
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
	}{Folder: folder, Functions: map[string]definition{}}
	if config.Port, err = freeport.Find(); err != nil {
		return "", nil, err
	}

	for name, f := range functions {
		ending, runtime := ".mjs", ""
		if f.Python {
			ending, runtime = ".py", "python3.13" // the server runs python3, but requires a name that AWS knows
		}
		if err := os.WriteFile(filepath.Join(folder, name+ending), []byte(f.Code), 0o600); err != nil {
			return "", nil, fmt.Errorf("write function %s: %w", name, err)
		}
		config.Functions[name] = definition{Handler: name + ".handler",
			Runtime: runtime, Environment: f.Environment, Timeout: f.Timeout}
	}

	text, err := json.Marshal(config)
	if err != nil {
		return "", nil, err
	}
	cmd, life, err := testserver.Node("serverless-offline", string(text))
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, fmt.Errorf("start serverless-offline: %w", err)
	}

	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start serverless-offline: %w", err)
	}
	said := bufio.NewScanner(out)
	said.Buffer(nil, 8<<20)
	if !said.Scan() || said.Text() != "ready" {
		return "", nil, errors.Join(fmt.Errorf("start serverless-offline: it said %q", said.Text()), life.Close(),
			cmd.Wait())
	}

	read := make(chan struct{})
	go func() {
		defer close(read)
		for said.Scan() {
			log(said.Text())
		}
	}()
	stop = func() error {
		err := life.Close()
		<-read
		return errors.Join(err, cmd.Wait())
	}
	return fmt.Sprintf("http://127.0.0.1:%d", config.Port), stop, nil
}
