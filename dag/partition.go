package dag

import "fmt"

// String says in words what a partitioning is, as messages and plans do.
func (p Partitioning) String() string {
	switch p.Kind {
	case ByKey:
		return "key partitions"
	case ByTime:
		if p.Timezone != "" && p.Timezone != "UTC" {
			return fmt.Sprintf("%s partitions in %s", p.Unit, p.Timezone)
		}
		return fmt.Sprintf("%s partitions", p.Unit)
	case ByRange:
		return fmt.Sprintf("ranges of %d of %s", p.Size, p.Column)
	case ByCursor:
		return fmt.Sprintf("the cursor %s", p.Column)
	}
	return "no partitions"
}
