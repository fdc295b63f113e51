package main

import (
	"fmt"
	"regexp"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// migDevice is what is expected of one MIG device, by NVML index.
type migDevice struct {
	profile         string
	gpuInstance     int
	computeInstance int
	processors      uint32
	memoryMB        uint64
	placement       nvml.GpuInstancePlacement
	gpuProfile      int
	computeProfile  int
}

var migForm = regexp.MustCompile(`^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// walkMigDevices asks what NVIDIA's go-nvlib asks to name the profile of a MIG device.
func walkMigDevices(c *checker, lib nvml.Interface, gpu nvml.Device, want node) {
	current, pending, ret := gpu.GetMigMode()
	c.ret("GetMigMode", ret, nvml.SUCCESS)
	c.equal("GetMigMode", [2]int{current, pending}, [2]int{1, 1})
	most, ret := gpu.GetMaxMigDeviceCount()
	c.ret("GetMaxMigDeviceCount", ret, nvml.SUCCESS)
	c.equal("GetMaxMigDeviceCount", most, 7)
	_, ret = gpu.GetMigDeviceHandleByIndex(len(want.migDevices))
	c.ret("GetMigDeviceHandleByIndex of none", ret, nvml.ERROR_NOT_FOUND)

	for index, expected := range want.migDevices {
		call := func(name string) string { return fmt.Sprintf("MIG device %d %s", index, name) }

		device, ret := gpu.GetMigDeviceHandleByIndex(index)
		if !c.ret(call("GetMigDeviceHandleByIndex"), ret, nvml.SUCCESS) {
			continue
		}
		isMig, ret := device.IsMigDeviceHandle()
		c.ret(call("IsMigDeviceHandle"), ret, nvml.SUCCESS)
		c.equal(call("IsMigDeviceHandle"), isMig, true)
		parent, ret := device.GetDeviceHandleFromMigDeviceHandle()
		c.ret(call("GetDeviceHandleFromMigDeviceHandle"), ret, nvml.SUCCESS)
		c.equal(call("GetDeviceHandleFromMigDeviceHandle"), parent, gpu)
		uuid, ret := device.GetUUID()
		c.ret(call("GetUUID"), ret, nvml.SUCCESS)
		c.equal(call("GetUUID is of NVIDIA's form: "+uuid), migForm.MatchString(uuid), true)
		same, ret := lib.DeviceGetHandleByUUID(uuid)
		c.ret(call("DeviceGetHandleByUUID"), ret, nvml.SUCCESS)
		c.equal(call("DeviceGetHandleByUUID"), same, device)
		name, ret := device.GetName()
		c.ret(call("GetName"), ret, nvml.SUCCESS)
		c.equal(call("GetName"), name, want.name+" MIG "+expected.profile)
		_, ret = device.GetUtilizationRates()
		c.ret(call("GetUtilizationRates"), ret, nvml.ERROR_NOT_SUPPORTED)
		memory, ret := device.GetMemoryInfo()
		c.ret(call("GetMemoryInfo"), ret, nvml.SUCCESS)
		c.equal(call("GetMemoryInfo"), memory.Total, expected.memoryMB*miB)
		attributes, ret := device.GetAttributes()
		c.ret(call("GetAttributes"), ret, nvml.SUCCESS)
		c.equal(call("GetAttributes"), [2]uint64{uint64(attributes.MultiprocessorCount), attributes.MemorySizeMB},
			[2]uint64{uint64(expected.processors), expected.memoryMB})

		gpuID, ret := device.GetGpuInstanceId()
		c.ret(call("GetGpuInstanceId"), ret, nvml.SUCCESS)
		c.equal(call("GetGpuInstanceId"), gpuID, expected.gpuInstance)
		computeID, ret := device.GetComputeInstanceId()
		c.ret(call("GetComputeInstanceId"), ret, nvml.SUCCESS)
		c.equal(call("GetComputeInstanceId"), computeID, expected.computeInstance)
		gpuInstance, ret := gpu.GetGpuInstanceById(gpuID)
		c.ret(call("GetGpuInstanceById"), ret, nvml.SUCCESS)
		info, ret := gpuInstance.GetInfo()
		c.ret(call("GpuInstance.GetInfo"), ret, nvml.SUCCESS)
		c.equal(call("GpuInstance.GetInfo"), info.Placement, expected.placement)
		profile, ret := gpu.GetGpuInstanceProfileInfo(expected.gpuProfile)
		c.ret(call("GetGpuInstanceProfileInfo"), ret, nvml.SUCCESS)
		c.equal(call("GetGpuInstanceProfileInfo"), profile.Id, info.ProfileId)
		versioned, ret := gpu.GetGpuInstanceProfileInfoV(expected.gpuProfile).V3()
		c.ret(call("GetGpuInstanceProfileInfoV"), ret, nvml.SUCCESS)
		c.equal(call("GetGpuInstanceProfileInfoV"), versioned.Id, info.ProfileId)
		instances, ret := gpu.GetGpuInstances(&profile)
		c.ret(call("GetGpuInstances"), ret, nvml.SUCCESS)
		c.equal(call("GetGpuInstances"), instances, []nvml.GpuInstance{gpuInstance})
		places, ret := gpu.GetGpuInstancePossiblePlacements(&profile)
		c.ret(call("GetGpuInstancePossiblePlacements"), ret, nvml.SUCCESS)
		possible := false
		for _, place := range places {
			possible = possible || place == expected.placement
		}
		c.equal(call("GetGpuInstancePossiblePlacements has its place"), possible, true)

		compute, ret := gpuInstance.GetComputeInstanceById(computeID)
		c.ret(call("GetComputeInstanceById"), ret, nvml.SUCCESS)
		computeInfo, ret := compute.GetInfo()
		c.ret(call("ComputeInstance.GetInfo"), ret, nvml.SUCCESS)
		c.equal(call("ComputeInstance.GetInfo device"), computeInfo.Device, device)
		computeProfile, ret := gpuInstance.GetComputeInstanceProfileInfo(expected.computeProfile, 0)
		c.ret(call("GetComputeInstanceProfileInfo"), ret, nvml.SUCCESS)
		c.equal(call("GetComputeInstanceProfileInfo"), computeProfile.Id, computeInfo.ProfileId)
		computes, ret := gpuInstance.GetComputeInstances(&computeProfile)
		c.ret(call("GetComputeInstances"), ret, nvml.SUCCESS)
		c.equal(call("GetComputeInstances"), computes, []nvml.ComputeInstance{compute})
	}
}
