//go:build schema

package main

import (
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/cdi/validate"
	"tags.cncf.io/container-device-interface/schema"
)

// Makes the library refuse files that the schema does not allow.
func useSchema() {
	cdi.SetSpecValidator(validate.WithSchema(schema.BuiltinSchema()))
}
