package rest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// misfit is a value of a body that its place cannot hold, though the schema has nothing against it. huma says that such
// an error is the body's; worded finds the place in the text.
type misfit struct{ place, message string }

const misfitMark = "\x00"

func (m *misfit) Error() string { return m.place + misfitMark + m.message }

// misfitIn finds the first value of a JSON text that does not fit into a type; nil: there is none.
func misfitIn(data []byte, into any) *misfit {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var body any
	if decoder.Decode(&body) != nil {
		return nil
	}
	return misfitAt("body", body, reflect.TypeOf(into))
}

var (
	readsJSON = reflect.TypeFor[json.Unmarshaler]()
	readsText = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func misfitAt(place string, value any, t reflect.Type) *misfit {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	pointer := reflect.PointerTo(t)
	text, isText := value.(string)
	switch {
	case value == nil || t.Kind() == reflect.Interface:
		return nil
	case pointer.Implements(readsText) && isText:
		if reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) != nil {
			return &misfit{place, "must be " + textOf(t)}
		}
		return nil
	case pointer.Implements(readsJSON):
		return nil // it says itself what it wants
	}

	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if number, is := value.(json.Number); is {
			return beyond(place, string(number), t)
		}
	case reflect.Slice, reflect.Array:
		list, _ := value.([]any)
		for i, element := range list {
			if m := misfitAt(fmt.Sprintf("%s[%d]", place, i), element, t.Elem()); m != nil {
				return m
			}
		}
	case reflect.Map:
		object, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			if m := misfitAt(place+"."+key, object[key], t.Elem()); m != nil {
				return m
			}
		}
	case reflect.Struct:
		object, _ := value.(map[string]any)
		return misfitOf(place, object, t)
	}
	return nil
}

// misfitOf looks at the fields of an object.
func misfitOf(place string, object map[string]any, t reflect.Type) *misfit {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		var found *misfit
		switch value, given := object[name]; {
		case field.Anonymous && name == "":
			found = misfitAt(place, object, field.Type)
		case given && name != "-":
			found = misfitAt(place+"."+name, value, field.Type)
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// beyond reports a whole number that is beyond those of a type.
func beyond(place, number string, t reflect.Type) *misfit {
	bits, digits := t.Bits(), ""
	if strings.ContainsAny(number, ".eE") {
		digits = ", written in digits"
	}
	if t.Kind() >= reflect.Uint {
		if _, err := strconv.ParseUint(number, 10, bits); err != nil {
			return &misfit{place, fmt.Sprintf("must be a whole number from 0 to %d%s", ^uint64(0)>>(64-bits), digits)}
		}
		return nil
	}
	if _, err := strconv.ParseInt(number, 10, bits); err != nil {
		least := int64(-1) << (bits - 1)
		return &misfit{place, fmt.Sprintf("must be a whole number from %d to %d%s", least, -(least + 1), digits)}
	}
	return nil
}

// textOf says what text a type has.
func textOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[uuid.UUID]():
		return "a UUID such as 0190c0de-0000-7000-8000-000000000001"
	case reflect.TypeFor[time.Time]():
		return "a time such as 2026-01-31T12:00:00Z"
	}
	return "another text: this one is not read"
}
