// Applies objects one after the other as the API server does server-side, with the schema of a CRD: one step per line of standard
// input, the object after it per line of standard output. It is built with several versions of structured-merge-diff.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	apimachinery "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"
)

// The longest line: more than an object may have in etcd.
const maxLine = 4 << 20

type step struct {
	Manager string                    `json:"manager"`
	Object  unstructured.Unstructured `json:"object"`
	// True for a schema in which every block is merged field by field.
	Granular bool `json:"granular"`
}

// The parts of a CRD that say how its objects are merged.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Kind string `json:"kind"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Schema struct {
				OpenAPIV3Schema spec.Schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "merge:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: merge CRD.yaml < STEPS")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var object *unstructured.Unstructured
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var step step
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			return fmt.Errorf("read a step: %w", err)
		}
		object, err = apply(text, object, step)
		if err != nil {
			return fmt.Errorf("apply %s: %w", lines.Text(), err)
		}
		line, err := json.Marshal(object)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

// Applies one step by force, as kubectl, Flux and Argo CD can.
func apply(crd []byte, live *unstructured.Unstructured, step step) (*unstructured.Unstructured, error) {
	var definition definition
	if err := yaml.Unmarshal(crd, &definition); err != nil {
		return nil, fmt.Errorf("read the CRD: %w", err)
	}
	version := definition.Spec.Versions[0]
	kind := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}
	converter, err := typeConverter(version.Schema.OpenAPIV3Schema, kind, step.Granular)
	if err != nil {
		return nil, err
	}
	if live == nil {
		live = &unstructured.Unstructured{}
		live.SetGroupVersionKind(kind)
	}
	applied, err := managedfieldstest.NewFakeFieldManager(converter, kind).Apply(live, &step.Object, step.Manager, true)
	if err != nil {
		return nil, err
	}
	after, ok := applied.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("not an unstructured object")
	}
	fields := after.GetManagedFields()
	for index := range fields {
		fields[index].Time = &apimachinery.Time{}
	}
	after.SetManagedFields(fields)
	return after, nil
}

func typeConverter(root spec.Schema, kind schema.GroupVersionKind, granular bool) (managedfields.TypeConverter, error) {
	if granular {
		makeGranular(&root)
	}
	text := spec.StringProperty()
	root.Properties["apiVersion"] = *text
	root.Properties["kind"] = *text
	root.Properties["metadata"] = *spec.MapProperty(nil)
	root.AddExtension("x-kubernetes-group-version-kind", []interface{}{
		map[string]interface{}{"group": kind.Group, "version": kind.Version, "kind": kind.Kind},
	})
	return managedfields.NewTypeConverter(map[string]*spec.Schema{kind.Kind: &root}, false)
}

// Makes every block of the spec granular, as it is without the extension.
func makeGranular(root *spec.Schema) {
	fields := root.Properties["spec"].Properties
	for name, field := range fields {
		delete(field.Extensions, "x-kubernetes-map-type")
		fields[name] = field
	}
}
