package main

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// node is what is expected of all GPUs of one node.
type node struct {
	count        int
	name         string
	memoryMiB    uint64
	capability   [2]int
	architecture nvml.DeviceArchitecture
	brand        nvml.BrandType
	pciDevice    uint32
	buses        []uint32
	powerLimitW  uint32
	// NUMA node of each GPU.
	numa []int
	// What lies between two different GPUs.
	level func(a, b int) nvml.GpuTopologyLevel
	// NVLink ports per GPU, and their generation.
	ports       int
	linkVersion uint32
	// Direct NVLinks between GPUs; nil where there are none.
	links [][]int
	// PCI buses of the switches to which all links lead; nil where there are none.
	switches []uint32
	mig      bool
	// MIG devices of the first GPU, by index; nil where MIG is off.
	migDevices []migDevice
	// Rows are remapped, pages not retired.
	remapsRows bool
}

var nodes = map[string]node{
	// DGX-1 with Volta.
	"v100": {
		count:        8,
		name:         "Tesla V100-SXM2-32GB",
		memoryMiB:    32768,
		capability:   [2]int{7, 0},
		architecture: nvml.DEVICE_ARCH_VOLTA,
		brand:        nvml.BRAND_TESLA,
		pciDevice:    0x1DB510DE,
		buses:        []uint32{0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A},
		powerLimitW:  300,
		numa:         []int{0, 0, 0, 0, 1, 1, 1, 1},
		level: func(a, b int) nvml.GpuTopologyLevel {
			switch {
			case a/2 == b/2:
				return nvml.TOPOLOGY_SINGLE
			case a/4 == b/4:
				return nvml.TOPOLOGY_HOSTBRIDGE
			default:
				return nvml.TOPOLOGY_SYSTEM
			}
		},
		ports:       6,
		linkVersion: 2,
		links: [][]int{
			{0, 1, 1, 2, 2, 0, 0, 0},
			{1, 0, 2, 1, 0, 2, 0, 0},
			{1, 2, 0, 2, 0, 0, 1, 0},
			{2, 1, 2, 0, 0, 0, 0, 1},
			{2, 0, 0, 0, 0, 1, 1, 2},
			{0, 2, 0, 0, 1, 0, 2, 1},
			{0, 0, 1, 0, 1, 2, 0, 2},
			{0, 0, 0, 1, 2, 1, 2, 0},
		},
	},
	// Four cards, two per socket.
	"t4": {
		count:        4,
		name:         "Tesla T4",
		memoryMiB:    15360,
		capability:   [2]int{7, 5},
		architecture: nvml.DEVICE_ARCH_TURING,
		brand:        nvml.BRAND_TESLA,
		pciDevice:    0x1EB810DE,
		buses:        []uint32{0x11, 0x1A, 0x31, 0x3A},
		powerLimitW:  70,
		numa:         []int{0, 0, 1, 1},
		level: func(a, b int) nvml.GpuTopologyLevel {
			if a/2 == b/2 {
				return nvml.TOPOLOGY_HOSTBRIDGE
			}
			return nvml.TOPOLOGY_SYSTEM
		},
	},
	// DGX A100.
	"a100": {
		count:        8,
		name:         "NVIDIA A100-SXM4-40GB",
		memoryMiB:    40960,
		capability:   [2]int{8, 0},
		architecture: nvml.DEVICE_ARCH_AMPERE,
		brand:        nvml.BRAND_NVIDIA,
		pciDevice:    0x20B010DE,
		buses:        []uint32{0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD},
		powerLimitW:  400,
		numa:         []int{0, 0, 0, 0, 1, 1, 1, 1},
		level: func(a, b int) nvml.GpuTopologyLevel {
			switch {
			case a/2 == b/2:
				return nvml.TOPOLOGY_MULTIPLE
			case a/4 == b/4:
				return nvml.TOPOLOGY_NODE
			default:
				return nvml.TOPOLOGY_SYSTEM
			}
		},
		ports:       12,
		linkVersion: 3,
		switches:    []uint32{0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9},
		mig:         true,
		remapsRows:  true,
	},
	// One divided A100: nothing but its MIG devices is looked at.
	"mig": {
		count: 1,
		name:  "NVIDIA A100-SXM4-40GB",
		migDevices: []migDevice{
			{"1c.3g.20gb", 2, 0, 14, 19968, nvml.GpuInstancePlacement{Start: 4, Size: 4}, nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE},
			{"2c.3g.20gb", 2, 1, 28, 19968, nvml.GpuInstancePlacement{Start: 4, Size: 4}, nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE},
			{"1g.5gb", 7, 0, 14, 4864, nvml.GpuInstancePlacement{Start: 0, Size: 1}, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE},
			{"1g.5gb+me", 8, 0, 14, 4864, nvml.GpuInstancePlacement{Start: 1, Size: 1}, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE},
		},
	},
}
