package sandbox

// Wall is one of the walls around what users run.
type Wall struct {
	Name   string `json:"name"`
	Stands bool   `json:"stands"`
	Detail string `json:"detail"`
}
