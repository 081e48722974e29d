package rest

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// A time whose year has five digits in UTC cannot be written as JSON again, so one such row would break every list that
// it is in. Times of requests are therefore refused outside of the years that timers have, too.
const firstYear, lastYear = 1, 9000

// checkTimes refuses a request with a time that no answer could contain.
func checkTimes(in any) error {
	at, bad := badTime(reflect.ValueOf(in), "")
	if !bad {
		return nil
	}
	return &fault.Error{Kind: fault.Invalid, Message: fmt.Sprintf("%s is not within the years 1 to 8999", at),
		Problems: []fault.Problem{{Location: at, Message: "the year is not from 1 to 8999, in UTC"}}}
}

// badTime finds the first time in v that is out of bounds, and returns where it is.
func badTime(v reflect.Value, at string) (where string, bad bool) {
	if !v.IsValid() || !holdsTimes(v.Type()) {
		return "", false
	}
	if t, ok := v.Interface().(time.Time); ok {
		year := t.UTC().Year()
		return at, !t.IsZero() && (year < firstYear || year >= lastYear)
	}

	switch v.Kind() {
	case reflect.Pointer:
		return badTime(v.Elem(), at)
	case reflect.Slice:
		for i := range v.Len() {
			if where, bad := badTime(v.Index(i), fmt.Sprintf("%s[%d]", at, i)); bad {
				return where, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if where, bad := badTime(v.Field(i), joinPath(at, f)); bad {
				return where, true
			}
		}
	}
	return "", false
}

// joinPath returns the location of a field, named as its request names it.
func joinPath(at string, f reflect.StructField) string {
	name := strings.ToLower(f.Name)
	for _, tag := range []string{"json", "query", "path", "header"} {
		if text, _, _ := strings.Cut(f.Tag.Get(tag), ","); text != "" {
			name = text
		}
	}
	switch {
	case f.Anonymous:
		return at
	case at == "":
		return name
	}
	return at + "." + name
}

var timeHolders sync.Map // reflect.Type → bool

// holdsTimes reports whether values of a type may hold times. Most requests hold none.
func holdsTimes(t reflect.Type) bool {
	if known, ok := timeHolders.Load(t); ok {
		return known.(bool)
	}
	holds := findTimes(t, map[reflect.Type]bool{})
	timeHolders.Store(t, holds)
	return holds
}

// findTimes looks for times in a type that is not being looked at already.
func findTimes(t reflect.Type, seen map[reflect.Type]bool) (found bool) {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return findTimes(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			found = found || t.Field(i).IsExported() && findTimes(t.Field(i).Type, seen)
		}
	}
	return found || t == reflect.TypeFor[time.Time]()
}
