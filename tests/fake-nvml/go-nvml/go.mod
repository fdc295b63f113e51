module gpunode.dev/tests/go-nvml

go 1.23

require github.com/NVIDIA/go-nvml v0.13.0-1
