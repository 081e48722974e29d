package usage

import "github.com/dagctl/dagctl/dispatcher/workitems"

// What tests do step by step.
var (
	BucketOf = bucketOf
)

// Count counts the next rows of the trail.
func (u *Usage) Count() workitems.Step { return u.count }
