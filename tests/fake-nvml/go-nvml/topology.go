package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func walkTopology(c *checker, device nvml.Device, index int, devices []nvml.Device, want node) {
	call := func(name string) string { return fmt.Sprintf("GPU %d %s", index, name) }

	nearest := map[nvml.GpuTopologyLevel][]int{}
	for peer, other := range devices {
		level := nvml.TOPOLOGY_INTERNAL
		if peer != index {
			level = want.level(index, peer)
			nearest[level] = append(nearest[level], peer)
		}
		got, ret := device.GetTopologyCommonAncestor(other)
		pair := fmt.Sprintf("GetTopologyCommonAncestor(%d)", peer)
		c.ret(call(pair), ret, nvml.SUCCESS)
		c.equal(call(pair), got, level)
		if peer != index {
			walkP2P(c, device, other, index, peer, want)
		}
	}
	for level, peers := range nearest {
		found, ret := device.GetTopologyNearestGpus(level)
		c.ret(call("GetTopologyNearestGpus"), ret, nvml.SUCCESS)
		var indices []int
		for _, other := range found {
			peer, _ := other.GetIndex()
			indices = append(indices, peer)
		}
		c.equal(call(fmt.Sprintf("GetTopologyNearestGpus(%d)", level)), indices, peers)
	}

	// GPUs are no NUMA nodes on these machines.
	_, ret := device.GetNumaNodeId()
	c.ret(call("GetNumaNodeId"), ret, nvml.ERROR_NOT_SUPPORTED)
	cpus, ret := device.GetCpuAffinity(64)
	c.ret(call("GetCpuAffinity"), ret, nvml.SUCCESS)
	c.equal(call("GetCpuAffinity"), bits(cpus), []uint{0xFFFF << (16 * want.numa[index])})
	memory, ret := device.GetMemoryAffinity(64, nvml.AFFINITY_SCOPE_NODE)
	c.ret(call("GetMemoryAffinity"), ret, nvml.SUCCESS)
	c.equal(call("GetMemoryAffinity"), bits(memory), []uint{1 << want.numa[index]})
	walkNvLinks(c, device, index, want)

	// Hopper came with the fabric.
	_, ret = device.GetGpuFabricInfo()
	c.ret(call("GetGpuFabricInfo"), ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = device.GetGpuFabricInfoV().V2()
	c.ret(call("GetGpuFabricInfoV version 2"), ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = device.GetGpuFabricInfoV().V3()
	c.ret(call("GetGpuFabricInfoV version 3"), ret, nvml.ERROR_NOT_SUPPORTED)
}

// bits leaves out words without a bit at the end: the binding asks for more than it is told to.
func bits(words []uint) []uint {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return words
}

func walkP2P(c *checker, device, other nvml.Device, index, peer int, want node) {
	linked := want.switches != nil || want.links != nil && want.links[index][peer] > 0
	status, ret := device.GetP2PStatus(other, nvml.P2P_CAPS_INDEX_NVLINK)
	pair := fmt.Sprintf("GPU %d GetP2PStatus(%d, NVLINK)", index, peer)
	c.ret(pair, ret, nvml.SUCCESS)
	if linked {
		c.equal(pair, status, nvml.P2P_STATUS_OK)
	} else {
		c.equal(pair, status, nvml.P2P_STATUS_NOT_SUPPORTED)
	}
}

func walkNvLinks(c *checker, device nvml.Device, index int, want node) {
	call := func(name string, port int) string { return fmt.Sprintf("GPU %d %s(%d)", index, name, port) }

	toGpu := make([]int, want.count)
	toSwitch := map[uint32]int{}
	for port := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(port)
		if want.ports == 0 {
			c.ret(call("GetNvLinkState", port), ret, nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		if port >= want.ports {
			c.ret(call("GetNvLinkState", port), ret, nvml.ERROR_INVALID_ARGUMENT)
			continue
		}
		c.ret(call("GetNvLinkState", port), ret, nvml.SUCCESS)
		c.equal(call("GetNvLinkState", port), state, nvml.FEATURE_ENABLED)
		version, ret := device.GetNvLinkVersion(port)
		c.ret(call("GetNvLinkVersion", port), ret, nvml.SUCCESS)
		c.equal(call("GetNvLinkVersion", port), version, want.linkVersion)
		p2p, ret := device.GetNvLinkCapability(port, nvml.NVLINK_CAP_P2P_SUPPORTED)
		c.ret(call("GetNvLinkCapability", port), ret, nvml.SUCCESS)
		c.equal(call("GetNvLinkCapability", port), p2p, uint32(1))

		kind, ret := device.GetNvLinkRemoteDeviceType(port)
		c.ret(call("GetNvLinkRemoteDeviceType", port), ret, nvml.SUCCESS)
		pci, ret := device.GetNvLinkRemotePciInfo(port)
		c.ret(call("GetNvLinkRemotePciInfo", port), ret, nvml.SUCCESS)
		if want.switches != nil {
			c.equal(call("GetNvLinkRemoteDeviceType", port), kind, nvml.NVLINK_DEVICE_TYPE_SWITCH)
			toSwitch[pci.Bus]++
			continue
		}
		c.equal(call("GetNvLinkRemoteDeviceType", port), kind, nvml.NVLINK_DEVICE_TYPE_GPU)
		for peer, bus := range want.buses {
			if pci.Bus == bus {
				toGpu[peer]++
			}
		}
	}
	if want.links != nil {
		c.equal(fmt.Sprintf("GPU %d NVLinks to each GPU", index), toGpu, want.links[index])
	}
	if want.switches != nil {
		expected := map[uint32]int{}
		for _, bus := range want.switches {
			expected[bus] = want.ports / len(want.switches)
		}
		c.equal(fmt.Sprintf("GPU %d NVLinks to each switch", index), toSwitch, expected)
	}
}
