package main

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	miB = 1 << 20
	// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
	recoveryAction = 230
)

func walkUsage(c *checker, device nvml.Device, index int, want node) {
	call := func(name string) string { return fmt.Sprintf("GPU %d %s", index, name) }

	memory, ret := device.GetMemoryInfo_v2()
	c.ret(call("GetMemoryInfo_v2"), ret, nvml.SUCCESS)
	c.equal(call("GetMemoryInfo_v2 total"), memory.Total, want.memoryMiB*miB)
	c.equal(call("GetMemoryInfo_v2 used"), memory.Used, uint64(0))
	c.equal(call("GetMemoryInfo_v2 sum"), memory.Used+memory.Free+memory.Reserved, memory.Total)
	old, ret := device.GetMemoryInfo()
	c.ret(call("GetMemoryInfo"), ret, nvml.SUCCESS)
	c.equal(call("GetMemoryInfo total"), old.Total, want.memoryMiB*miB)
	c.equal(call("GetMemoryInfo sum"), old.Used+old.Free, old.Total)

	processes, ret := device.GetComputeRunningProcesses()
	c.ret(call("GetComputeRunningProcesses"), ret, nvml.SUCCESS)
	c.equal(call("GetComputeRunningProcesses"), len(processes), 0)
	processes, ret = device.GetMPSComputeRunningProcesses()
	c.ret(call("GetMPSComputeRunningProcesses"), ret, nvml.SUCCESS)
	c.equal(call("GetMPSComputeRunningProcesses"), len(processes), 0)
	load, ret := device.GetUtilizationRates()
	c.ret(call("GetUtilizationRates"), ret, nvml.SUCCESS)
	c.equal(call("GetUtilizationRates"), load, nvml.Utilization{})

	limit, ret := device.GetEnforcedPowerLimit()
	c.ret(call("GetEnforcedPowerLimit"), ret, nvml.SUCCESS)
	c.equal(call("GetEnforcedPowerLimit"), limit, want.powerLimitW*1000)
	power, ret := device.GetPowerUsage()
	c.ret(call("GetPowerUsage"), ret, nvml.SUCCESS)
	c.equal(call("GetPowerUsage is within the limit"), power > 0 && power < limit, true)
	temperature, ret := device.GetTemperature(nvml.TEMPERATURE_GPU)
	c.ret(call("GetTemperature"), ret, nvml.SUCCESS)
	c.equal(call("GetTemperature is that of an idle board"), temperature > 20 && temperature < 50, true)

	c.ret(call("SetComputeMode"), device.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS), nvml.SUCCESS)
	mode, ret := device.GetComputeMode()
	c.ret(call("GetComputeMode"), ret, nvml.SUCCESS)
	c.equal(call("GetComputeMode"), mode, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	c.ret(call("SetComputeMode of no mode"), device.SetComputeMode(nvml.COMPUTEMODE_COUNT), nvml.ERROR_INVALID_ARGUMENT)
	c.ret(call("SetComputeMode"), device.SetComputeMode(nvml.COMPUTEMODE_DEFAULT), nvml.SUCCESS)
	c.ret(call("SetPersistenceMode"), device.SetPersistenceMode(nvml.FEATURE_ENABLED), nvml.SUCCESS)
	persistence, ret := device.GetPersistenceMode()
	c.ret(call("GetPersistenceMode"), ret, nvml.SUCCESS)
	c.equal(call("GetPersistenceMode"), persistence, nvml.FEATURE_ENABLED)
}

func walkHealth(c *checker, device nvml.Device, index int, want node) {
	call := func(name string) string { return fmt.Sprintf("GPU %d %s", index, name) }

	for _, kind := range []nvml.MemoryErrorType{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
		errors, ret := device.GetTotalEccErrors(kind, nvml.AGGREGATE_ECC)
		c.ret(call("GetTotalEccErrors"), ret, nvml.SUCCESS)
		c.equal(call("GetTotalEccErrors"), errors, uint64(0))
	}
	pages, retPages := device.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	_, _, retPages2 := device.GetRetiredPages_v2(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	_, retPending := device.GetRetiredPagesPendingStatus()
	_, _, pending, failed, retRows := device.GetRemappedRows()
	_, retHistogram := device.GetRowRemapperHistogram()
	ofPages, ofRows := nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED
	if want.remapsRows {
		ofPages, ofRows = ofRows, ofPages
	}
	c.ret(call("GetRetiredPages"), retPages, ofPages)
	c.equal(call("GetRetiredPages"), len(pages), 0)
	c.ret(call("GetRetiredPages_v2"), retPages2, ofPages)
	c.ret(call("GetRetiredPagesPendingStatus"), retPending, ofPages)
	c.ret(call("GetRemappedRows"), retRows, ofRows)
	c.equal(call("GetRemappedRows"), [2]bool{pending, failed}, [2]bool{false, false})
	c.ret(call("GetRowRemapperHistogram"), retHistogram, ofRows)

	values := []nvml.FieldValue{{FieldId: recoveryAction}}
	c.ret(call("GetFieldValues"), device.GetFieldValues(values), nvml.SUCCESS)
	c.ret(call("GetFieldValues of the recovery action"), nvml.Return(values[0].NvmlReturn), nvml.SUCCESS)
	c.equal(call("recovery action"), binary.NativeEndian.Uint32(values[0].Value[:4]), uint32(0))
}
