// Command go-nvml walks the NVML calls that a GPU agent needs, through NVIDIA's own Go binding,
// and compares the answers with expectations of its own. On the simulated library it shows that
// other people's programs work there; it knows nothing of how that library is made, except where
// faults are written.
//
//	go run . v100|t4|a100|mig /path/to/libnvidia-ml.so.1
package main

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go-nvml v100|t4|a100|mig LIBRARY")
		os.Exit(2)
	}
	want, known := nodes[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "no expectations named %q\n", os.Args[1])
		os.Exit(2)
	}

	library := os.Args[2]
	lib := nvml.New(nvml.WithLibraryPath(library))
	check := &checker{}
	walkSystem(check, lib)
	devices := walkHandles(check, lib, want)
	switch {
	case len(devices) != want.count:
	case want.migDevices != nil:
		walkMigDevices(check, lib, devices[0], want)
	default:
		for index, device := range devices {
			walkIdentity(check, lib, device, index, want)
			walkTopology(check, device, index, devices, want)
			walkMig(check, device, index, want)
			walkHealth(check, device, index, want)
			walkUsage(check, device, index, want)
		}
		walkFaults(check, lib, devices, library)
	}
	check.ret("Shutdown", lib.Shutdown(), nvml.SUCCESS)
	os.Exit(check.report(os.Args[1]))
}
