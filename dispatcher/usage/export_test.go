package usage

import "github.com/dagctl/dagctl/dispatcher/workitems"

// Count counts the next rows of the trail.
func (u *Usage) Count() workitems.Step { return u.count }
