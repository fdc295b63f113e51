package main

import (
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Longer than any machine needs.
const patienceMs = 30_000

// walkFaults lets things happen to the first GPU, by the state file beside the library.
func walkFaults(c *checker, lib nvml.Interface, devices []nvml.Device, library string) {
	first, second := devices[0], devices[1]
	happens := func(state string) {
		file := filepath.Join(filepath.Dir(library), "gpunode-state.yaml")
		err := os.WriteFile(file+".new", []byte(state), 0o644)
		if err == nil {
			err = os.Rename(file+".new", file)
		}
		c.equal("write the state", err, nil)
	}

	types, ret := first.GetSupportedEventTypes()
	c.ret("GetSupportedEventTypes", ret, nvml.SUCCESS)
	const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccError
	c.equal("GetSupportedEventTypes", types&wanted, uint64(wanted))
	set, ret := lib.EventSetCreate()
	c.ret("EventSetCreate", ret, nvml.SUCCESS)
	for _, device := range devices {
		c.ret("RegisterEvents", device.RegisterEvents(wanted, set), nvml.SUCCESS)
	}
	_, ret = set.Wait(10)
	c.ret("EventSetWait without an event", ret, nvml.ERROR_TIMEOUT)

	happens("lastEvent: 1\ngpus: {0: {lost: true, xids: [{id: 1, xid: 79}]}}\n")
	event, ret := set.Wait(patienceMs)
	if c.ret("EventSetWait", ret, nvml.SUCCESS) {
		c.equal("EventSetWait type", event.EventType, uint64(nvml.EventTypeXidCriticalError))
		c.equal("EventSetWait XID", event.EventData, uint64(79))
		c.equal("EventSetWait instances", [2]uint32{event.GpuInstanceId, event.ComputeInstanceId}, [2]uint32{^uint32(0), ^uint32(0)})
	}
	_, ret = set.Wait(10)
	c.ret("EventSetWait after the event", ret, nvml.ERROR_TIMEOUT)
	_, ret = first.GetName()
	c.ret("GetName of a lost GPU", ret, nvml.ERROR_GPU_IS_LOST)
	_, ret = second.GetName()
	c.ret("GetName of another GPU", ret, nvml.SUCCESS)

	happens("lastEvent: 1\ngpus: {0: {failing: {nvmlDeviceGetMemoryInfo: UNKNOWN}, processes: [{pid: 7, memoryMib: 100}]}}\n")
	_, ret = first.GetName()
	c.ret("GetName of a GPU that is back", ret, nvml.SUCCESS)
	_, ret = first.GetMemoryInfo_v2()
	c.ret("GetMemoryInfo_v2 made to fail", ret, nvml.ERROR_UNKNOWN)
	processes, ret := first.GetComputeRunningProcesses()
	c.ret("GetComputeRunningProcesses", ret, nvml.SUCCESS)
	if len(processes) == 1 {
		c.equal("process", [2]uint64{uint64(processes[0].Pid), processes[0].UsedGpuMemory}, [2]uint64{7, 100 * miB})
	}
	c.equal("GetComputeRunningProcesses", len(processes), 1)
	c.ret("EventSetFree", set.Free(), nvml.SUCCESS)
}
