// Command nvcdi prints the CDI spec that NVIDIA's container toolkit generates for the GPUs of this machine.
//
//	nvcdi DRIVER-ROOT DEVICE-ROOT HOOK-PROGRAM NVML-LIBRARY
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nvcdi:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 5 {
		return fmt.Errorf("usage: nvcdi DRIVER-ROOT DEVICE-ROOT HOOK-PROGRAM NVML-LIBRARY")
	}
	// As gpunode names devices.
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return err
	}
	library, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(os.Args[1]),
		nvcdi.WithDevRoot(os.Args[2]),
		nvcdi.WithNVIDIACDIHookPath(os.Args[3]),
		nvcdi.WithNvmlLib(nvml.New(nvml.WithLibraryPath(os.Args[4]))),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithVendor("gpunode.dev"),
		nvcdi.WithClass("gpu"),
		// The simulated driver has a file of that name, and nothing is in it.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return fmt.Errorf("look at the driver: %w", err)
	}
	spec, err := library.GetSpec()
	if err != nil {
		return fmt.Errorf("generate the spec: %w", err)
	}
	// As the library does when it saves the spec.
	raw := spec.Raw()
	if raw.Version, err = cdi.MinimumRequiredVersion(raw); err != nil {
		return fmt.Errorf("find the version of the spec: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(raw)
}
