package main

import (
	"fmt"
	"regexp"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var (
	uuidForm   = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	serialForm = regexp.MustCompile(`^[0-9]{13}$`)
)

func walkSystem(c *checker, lib nvml.Interface) {
	c.ret("Init", lib.Init(), nvml.SUCCESS)

	driver, ret := lib.SystemGetDriverVersion()
	c.ret("SystemGetDriverVersion", ret, nvml.SUCCESS)
	c.equal("SystemGetDriverVersion", driver, "580.95.05")
	version, ret := lib.SystemGetNVMLVersion()
	c.ret("SystemGetNVMLVersion", ret, nvml.SUCCESS)
	c.equal("SystemGetNVMLVersion", version, "13.580.95.05")
	cuda, ret := lib.SystemGetCudaDriverVersion()
	c.ret("SystemGetCudaDriverVersion", ret, nvml.SUCCESS)
	c.equal("SystemGetCudaDriverVersion", cuda, 13000)
	cuda, ret = lib.SystemGetCudaDriverVersion_v2()
	c.ret("SystemGetCudaDriverVersion_v2", ret, nvml.SUCCESS)
	c.equal("SystemGetCudaDriverVersion_v2", cuda, 13000)
	c.equal("ErrorString", lib.ErrorString(nvml.ERROR_GPU_IS_LOST), "GPU is lost")
}

// walkHandles finds every GPU by its index.
func walkHandles(c *checker, lib nvml.Interface, want node) []nvml.Device {
	count, ret := lib.DeviceGetCount()
	c.ret("DeviceGetCount", ret, nvml.SUCCESS)
	c.equal("DeviceGetCount", count, want.count)

	var devices []nvml.Device
	for index := range want.count {
		device, ret := lib.DeviceGetHandleByIndex(index)
		if c.ret(fmt.Sprintf("DeviceGetHandleByIndex(%d)", index), ret, nvml.SUCCESS) {
			devices = append(devices, device)
		}
	}
	_, ret = lib.DeviceGetHandleByIndex(want.count)
	c.ret("DeviceGetHandleByIndex(count)", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = lib.DeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
	c.ret("DeviceGetHandleByUUID of no GPU", ret, nvml.ERROR_NOT_FOUND)
	return devices
}

func walkIdentity(c *checker, lib nvml.Interface, device nvml.Device, index int, want node) {
	call := func(name string) string { return fmt.Sprintf("GPU %d %s", index, name) }

	found, ret := device.GetIndex()
	c.ret(call("GetIndex"), ret, nvml.SUCCESS)
	c.equal(call("GetIndex"), found, index)
	minor, ret := device.GetMinorNumber()
	c.ret(call("GetMinorNumber"), ret, nvml.SUCCESS)
	c.equal(call("GetMinorNumber"), minor, index)
	name, ret := device.GetName()
	c.ret(call("GetName"), ret, nvml.SUCCESS)
	c.equal(call("GetName"), name, want.name)
	brand, ret := device.GetBrand()
	c.ret(call("GetBrand"), ret, nvml.SUCCESS)
	c.equal(call("GetBrand"), brand, want.brand)
	architecture, ret := device.GetArchitecture()
	c.ret(call("GetArchitecture"), ret, nvml.SUCCESS)
	c.equal(call("GetArchitecture"), architecture, want.architecture)
	major, smaller, ret := device.GetCudaComputeCapability()
	c.ret(call("GetCudaComputeCapability"), ret, nvml.SUCCESS)
	c.equal(call("GetCudaComputeCapability"), [2]int{major, smaller}, want.capability)
	serial, ret := device.GetSerial()
	c.ret(call("GetSerial"), ret, nvml.SUCCESS)
	c.equal(call("GetSerial is a number of 13 digits: "+serial), serialForm.MatchString(serial), true)

	uuid, ret := device.GetUUID()
	c.ret(call("GetUUID"), ret, nvml.SUCCESS)
	c.equal(call("GetUUID is of NVIDIA's form: "+uuid), uuidForm.MatchString(uuid), true)
	same, ret := lib.DeviceGetHandleByUUID(uuid)
	c.ret(call("DeviceGetHandleByUUID"), ret, nvml.SUCCESS)
	c.equal(call("DeviceGetHandleByUUID"), same, device)

	pci, ret := device.GetPciInfo()
	c.ret(call("GetPciInfo"), ret, nvml.SUCCESS)
	c.equal(call("GetPciInfo device id"), pci.PciDeviceId, want.pciDevice)
	c.equal(call("GetPciInfo address"), [3]uint32{pci.Domain, pci.Bus, pci.Device}, [3]uint32{0, want.buses[index], 0})
	c.equal(call("GetPciInfo bus id"), text(pci.BusId[:]), fmt.Sprintf("00000000:%02X:00.0", want.buses[index]))
	c.equal(call("GetPciInfo legacy bus id"), text(pci.BusIdLegacy[:]), fmt.Sprintf("0000:%02X:00.0", want.buses[index]))
	same, ret = lib.DeviceGetHandleByPciBusId(text(pci.BusId[:]))
	c.ret(call("DeviceGetHandleByPciBusId"), ret, nvml.SUCCESS)
	c.equal(call("DeviceGetHandleByPciBusId"), same, device)
	extended, ret := device.GetPciInfoExt()
	c.ret(call("GetPciInfoExt"), ret, nvml.SUCCESS)
	c.equal(call("GetPciInfoExt class"), [2]uint32{extended.BaseClass, extended.SubClass}, [2]uint32{3, 2})
}

func walkMig(c *checker, device nvml.Device, index int, want node) {
	call := func(name string) string { return fmt.Sprintf("GPU %d %s", index, name) }

	current, pending, ret := device.GetMigMode()
	_, byIndex := device.GetMigDeviceHandleByIndex(0)
	if want.mig {
		c.ret(call("GetMigMode"), ret, nvml.SUCCESS)
		c.equal(call("GetMigMode"), [2]int{current, pending}, [2]int{0, 0})
		c.ret(call("GetMigDeviceHandleByIndex"), byIndex, nvml.ERROR_NOT_FOUND)
	} else {
		c.ret(call("GetMigMode"), ret, nvml.ERROR_NOT_SUPPORTED)
		c.ret(call("GetMigDeviceHandleByIndex"), byIndex, nvml.ERROR_NOT_SUPPORTED)
		_, ret = device.SetMigMode(1)
		c.ret(call("SetMigMode"), ret, nvml.ERROR_NOT_SUPPORTED)
		_, ret = device.GetGpuInstanceProfileInfo(0)
		c.ret(call("GetGpuInstanceProfileInfo"), ret, nvml.ERROR_NOT_SUPPORTED)
	}
	count, ret := device.GetMaxMigDeviceCount()
	c.ret(call("GetMaxMigDeviceCount"), ret, nvml.SUCCESS)
	c.equal(call("GetMaxMigDeviceCount"), count, 0)
	isMig, ret := device.IsMigDeviceHandle()
	c.ret(call("IsMigDeviceHandle"), ret, nvml.SUCCESS)
	c.equal(call("IsMigDeviceHandle"), isMig, false)
}

// text is what stands before the first NUL.
func text(buffer []uint8) string {
	for at, char := range buffer {
		if char == 0 {
			return string(buffer[:at])
		}
	}
	return string(buffer)
}
