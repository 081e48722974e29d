package rest

import (
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/dagctl/dagctl/internal/fault"
)

// useWording makes huma say what is wrong with a request in words that follow the name of its place: "limit" "must be
// at least 1". huma has only package variables for that, and uses them when a schema is made.
func useWording() {
	for message, words := range map[*string]string{
		&validation.MsgUnexpectedProperty:                "is no field of this request",
		&validation.MsgExpectedRequiredProperty:          "lacks the field %s",
		&validation.MsgExpectedBoolean:                   "must be true or false",
		&validation.MsgExpectedNumber:                    "must be a number",
		&validation.MsgExpectedInteger:                   "must be a whole number",
		&validation.MsgExpectedString:                    "must be text",
		&validation.MsgExpectedArray:                     "must be a list",
		&validation.MsgExpectedObject:                    "must be an object",
		&validation.MsgExpectedBase64String:              "must be text in base64",
		&validation.MsgExpectedOneOf:                     "must be one of: %s",
		&validation.MsgExpectedMinimumNumber:             "must be at least %.15g",
		&validation.MsgExpectedExclusiveMinimumNumber:    "must be more than %.15g",
		&validation.MsgExpectedMaximumNumber:             "must be at most %.15g",
		&validation.MsgExpectedExclusiveMaximumNumber:    "must be less than %.15g",
		&validation.MsgExpectedMinLength:                 "must have %d or more characters",
		&validation.MsgExpectedMaxLength:                 "must have no more than %d characters",
		&validation.MsgExpectedMatchPattern:              "must match the pattern %s",
		&validation.MsgExpectedBePattern:                 "must be %s",
		&validation.MsgExpectedMinItems:                  "must have %d or more entries",
		&validation.MsgExpectedMaxItems:                  "must have no more than %d entries",
		&validation.MsgExpectedArrayItemsUnique:          "must not have an entry twice",
		&validation.MsgExpectedMinProperties:             "must have %d or more fields",
		&validation.MsgExpectedMaxProperties:             "must have no more than %d fields",
		&validation.MsgExpectedRFC3339DateTime:           "must be a time such as 2026-01-31T12:00:00Z",
		&validation.MsgExpectedRFC3339Date:               "must be a date such as 2026-01-31",
		&validation.MsgExpectedRFC4122UUID:               "must be a UUID: %v",
		&validation.MsgExpectedRFC3986URI:                "must be a URI: %v",
		&validation.MsgExpectedMatchAtLeastOneSchema:     "has none of the forms that are allowed here",
		&validation.MsgExpectedMatchExactlyOneSchema:     "has not exactly one of the forms that are allowed",
		&validation.MsgExpectedDependentRequiredProperty: "lacks the field %s, which is needed with %s",
	} {
		*message = words
	}
}

// parameterWords are what huma says of parameters, which it has no variables for.
var parameterWords = map[string]string{
	"invalid integer":  "must be a whole number",
	"invalid float":    "must be a number",
	"invalid boolean":  "must be true or false",
	"invalid duration": "must be a duration such as 1h30m",
}

// worded returns a problem that huma found in the words of useWording.
func worded(p fault.Problem) fault.Problem {
	if words, ok := parameterWords[p.Message]; ok {
		p.Message = words
	}
	if place, message, found := strings.Cut(p.Message, misfitMark); found {
		p.Location, p.Message = place, message
	}
	if strings.HasPrefix(p.Message, "must be a UUID: ") || strings.HasPrefix(p.Message, "invalid value: invalid UUID") {
		p.Message = "must be a UUID"
	}
	return p
}

// summary says in one line what is wrong with a request.
func summary(problems []fault.Problem) string {
	if len(problems) != 1 {
		return fmt.Sprintf("the request is not valid: %d places are wrong", len(problems))
	}
	p := problems[0]
	_, where, found := strings.Cut(p.Location, ".") // after body, path, query or header
	if !found {
		where = "the " + p.Location
	}
	for _, predicate := range []string{"must ", "is ", "lacks ", "has "} {
		if p.Location != "" && strings.HasPrefix(p.Message, predicate) {
			return "the request is not valid: " + where + " " + p.Message
		}
	}
	return "the request is not valid: " + p.Message
}
