//go:build !schema

package main

// This version of the library comes without the schema.
func useSchema() {}
