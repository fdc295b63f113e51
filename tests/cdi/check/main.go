// Command check reads a folder of CDI files with the library that container runtimes use, and gives an OCI spec the devices that
// are named. It prints JSON.
//
//	check FOLDER [DEVICE...] < config.json
//
// Without devices it reads no standard input. It is built with two versions of the library; the older one, of containerd 1.7,
// compares the files with the JSON schema too, which later versions of the module do not have.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

type result struct {
	// Devices that a container can request.
	Devices []string `json:"devices"`
	// Errors by file.
	Errors map[string][]string `json:"errors"`
	// Error of the injection.
	Refused string `json:"refused"`
	// The OCI spec with the devices.
	Spec *oci.Spec `json:"spec"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: check FOLDER [DEVICE...] < config.json")
	}
	useSchema()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(os.Args[1]), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read the CDI files in %s: %w", os.Args[1], err)
	}
	// An empty list, and not null.
	devices := append([]string{}, cache.ListDevices()...)
	found := result{Devices: devices, Errors: map[string][]string{}}
	for path, errors := range cache.GetErrors() {
		for _, err := range errors {
			found.Errors[path] = append(found.Errors[path], err.Error())
		}
	}
	if devices := os.Args[2:]; len(devices) > 0 {
		found.Spec = &oci.Spec{}
		if err := json.NewDecoder(os.Stdin).Decode(found.Spec); err != nil {
			return fmt.Errorf("read the OCI spec: %w", err)
		}
		if _, err := cache.InjectDevices(found.Spec, devices...); err != nil {
			found.Refused = err.Error()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
