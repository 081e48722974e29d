// Command sloppy is a worker that does what SDKs get wrong: it extends no lease, reports an end once and
// differently the next time, sends logs late, and dies when it is asked to stop.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"time"
)

func post(path string, header map[string]string, body any) (int, []byte) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	request, err := http.NewRequest(http.MethodPost, os.Getenv("DAGCTL_URL")+path, bytes.NewReader(text))
	if err != nil {
		panic(err)
	}

	request.Header.Set("Authorization", "Bearer "+os.Getenv("DAGCTL_TOKEN"))
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()

	answer, _ := io.ReadAll(response.Body)
	return response.StatusCode, answer
}

type claim struct {
	Attempt         int    `json:"attempt"`
	LeaseToken      string `json:"lease_token"`
	CapabilityToken string `json:"capability_token"`
	Task            struct {
		TaskID  string          `json:"task_id"`
		Payload json.RawMessage `json:"payload"`
		Config  map[string]any  `json:"config"`
	} `json:"task"`
}

func main() {
	handlers := []string{"conformance:echo", "conformance:sleep", "conformance:log"}
	for {
		var answer struct {
			Tasks []claim `json:"tasks"`
		}
		_, text := post("/internal/task-poll", nil,
			map[string]any{"worker_id": "sloppy", "runtime": os.Getenv("DAGCTL_RUNTIME"), "max": 8,
				"handlers": handlers})
		if json.Unmarshal(text, &answer) != nil {
			continue
		}
		for _, c := range answer.Tasks {
			work(c)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func work(c claim) {
	header := map[string]string{"X-Dagctl-Task-Capability": c.CapabilityToken}
	fence := func(more map[string]any) map[string]any {
		more["task_id"], more["attempt"], more["lease_token"] = c.Task.TaskID, c.Attempt, c.LeaseToken
		return more
	}

	var asked struct {
		Seconds int `json:"seconds"`
		Lines   int `json:"lines"`
	}
	_ = json.Unmarshal(c.Task.Payload, &asked) // echo's may be anything
	time.Sleep(time.Duration(asked.Seconds) * time.Second)
	var rounded any
	_ = json.Unmarshal(c.Task.Payload, &rounded)

	for try := 0; ; try++ {
		status, _ := post("/v1/task/complete", header,
			fence(map[string]any{"status": "Completed", "result": rounded, "source_version": string(rune('a' + try))}))
		if status == http.StatusOK || status == http.StatusConflict || try == 5 {
			break
		}
	}
	post("/v1/task/logs", header,
		fence(map[string]any{"lines": []any{map[string]any{"seq": 1, "at": time.Now(), "text": "line 1"}}}))
}
