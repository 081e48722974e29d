package batch

// Together works on all items at once and, if that fails, on each by itself: one of them may be the cause, and must not
// keep the others from being done. It calls failed for each item that fails by itself, in the order of the items.
func Together[T any](items []T, do func(items []T) error, failed func(item T, err error)) {
	if len(items) == 0 {
		return
	}
	if err := do(items); err != nil {
		one := func(item T) error { return do([]T{item}) }
		_ = OneByOne(items, err, one, func(item T, err error) error { failed(item, err); return nil })
	}
}

// OneByOne works on items that failed together because of cause, each by itself. A single item has been by itself
// already: cause is its error. OneByOne calls failed for each item that fails, and ends early with the error that
// failed returns.
func OneByOne[T any](items []T, cause error, do func(item T) error, failed func(item T, err error) error) error {
	for _, item := range items {
		err := cause
		if len(items) > 1 {
			err = do(item)
		}
		if err == nil {
			continue
		}
		if err := failed(item, err); err != nil {
			return err
		}
	}
	return nil
}
