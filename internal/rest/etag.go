package rest

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// ETag quotes a version for the ETag header. It must hold no quotes.
func ETag(version string) string { return `"` + version + `"` }

// CheckIfMatch refuses a write made for another state than etag, the current one. Without the header every state will do.
func CheckIfMatch(ifMatch, etag string) error {
	if ifMatch == "" || ifMatch == "*" {
		return nil
	}
	for candidate := range strings.SplitSeq(ifMatch, ",") {
		if strings.TrimSpace(candidate) == etag { // strong comparison: W/"..." never matches
			return nil
		}
	}
	return fault.New(fault.Conflict, "%w: it is %s", ErrPreconditionFailed, etag).
		WithHint("read it again, then repeat the change with the new ETag")
}
