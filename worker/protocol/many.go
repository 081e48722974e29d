package protocol

// MostCalls is how many calls of attempts one call of their worker may hold.
const MostCalls = 100

// Many holds calls of attempts that their worker makes at once; POST /v1/tasks/complete and /v1/tasks/heartbeat. Each
// is admitted, takes effect and is answered as by itself.
type Many[T any] struct {
	Calls []One[T] `json:"calls" nullable:"false" minItems:"1" maxItems:"100"`
}

// One is one of many calls.
type One[T any] struct {
	CapabilityToken string `json:"capability_token" doc:"That of the attempt, as in X-Dagctl-Task-Capability"`
	Body            T      `json:"body" doc:"As in the call of its own"`
}
