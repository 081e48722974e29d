package s3source

import (
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/bucket"
)

// Users name the server, and what it answers to a listing is kept in the memory of this process: it is bounded.
const (
	// maxObjects is how many objects a listing may have.
	maxObjects = 2_000_000
	// maxTag is the most bytes of an ETag; those of S3 have up to 38.
	maxTag = 256
)

// check refuses objects that no server would list that speaks S3, and those behind the last that a listing may have.
func check(key string, o types.Object, number int) error {
	switch {
	case number > maxObjects:
		return operators.Permanent(fault.New(fault.TooLarge, "there are more than %d objects", maxObjects).
			WithHint("read them by several jobs, each with a prefix of its own"))
	case len(key) > bucket.MaxKey || len(aws.ToString(o.ETag)) > maxTag:
		return operators.Permanent(fault.New(fault.Invalid,
			"the server lists an object whose key or ETag is longer than those of S3"))
	}
	return nil
}
