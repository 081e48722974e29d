package openlineage

import "embed"

// Schemas has the schemas of dagctl's own facets, in folder schema.
//
//go:embed schema
var Schemas embed.FS
