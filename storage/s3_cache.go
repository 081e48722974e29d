package storage

// cache will keep objects.
type cache struct{}

func (*cache) take(File, string) bool { return false }
func (*cache) keep(File, string)      {}
