// Package openlineagetest checks events against the published schemas of OpenLineage, which are in its folder spec, and
// against those of dagctl's own facets. It owns no tables.
package openlineagetest

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/dagctl/dagctl/lineage/openlineage"
)

//go:embed spec
var spec embed.FS

// runEvent is the schema of a run event.
const runEvent = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"

// Check returns an error unless body is a run event that is valid, and each of its facets is by the schema that it
// names.
func Check(body []byte) error {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	for _, from := range []fs.FS{spec, openlineage.Schemas} {
		if err := addAll(compiler, from); err != nil {
			return err
		}
	}

	event, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := check(compiler, runEvent, event); err != nil {
		return err
	}
	return checkFacets(compiler, event)
}

// addAll adds the schemas in a folder by their ids.
func addAll(compiler *jsonschema.Compiler, from fs.FS) error {
	return fs.WalkDir(from, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".json" {
			return err
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return err
		}
		id, _ := document.(map[string]any)["$id"].(string)
		return compiler.AddResource(id, document)
	})
}

// checkFacets checks each facet inside of a value.
func checkFacets(compiler *jsonschema.Compiler, value any) error {
	switch v := value.(type) {
	case map[string]any:
		if url, ok := v["_schemaURL"].(string); ok {
			if err := check(compiler, url, v); err != nil {
				return err
			}
		}
		for _, inside := range v {
			if err := checkFacets(compiler, inside); err != nil {
				return err
			}
		}
	case []any:
		for _, inside := range v {
			if err := checkFacets(compiler, inside); err != nil {
				return err
			}
		}
	}
	return nil
}

func check(compiler *jsonschema.Compiler, url string, value any) error {
	schema, err := compiler.Compile(url)
	if err != nil {
		return fmt.Errorf("schema %s: %w", url, err)
	}
	return schema.Validate(value)
}
