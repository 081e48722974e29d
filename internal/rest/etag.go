package rest

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// ETag returns a version in quotes, for the ETag header. The version must not have quotes.
func ETag(version string) string { return `"` + version + `"` }

// CheckIfMatch returns an error if a write was made for another state than the current one, etag. Without the header, a
// write may change any state.
func CheckIfMatch(ifMatch, etag string) error {
	if ifMatch == "" || ifMatch == "*" {
		return nil
	}
	for candidate := range strings.SplitSeq(ifMatch, ",") {
		if strings.TrimSpace(candidate) == etag { // strong comparison: W/"..." never matches
			return nil
		}
	}
	return fault.New(fault.Conflict, "%w, which is %s", ErrPreconditionFailed, etag).
		WithHint("read it again, then repeat the change with the new ETag")
}
