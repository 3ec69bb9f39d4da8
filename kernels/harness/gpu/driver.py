"""CUDA driver calls that raise, and what a driver's error means: the candidate's doing, or the machine's."""

from __future__ import annotations

from typing import Any

# Errors that a kernel brings about; the context is lost with it. Names as in CUresult.
KERNEL_FAULTS = {
    700: "an access to memory that is not there (illegal address)",
    702: "it ran for longer than the device allows",
    710: "an assertion in device code",
    714: "a broken stack in device code",
    715: "an illegal instruction (__trap, or one that this device does not have)",
    716: "a misaligned access",
    717: "an access to the wrong kind of memory (invalid address space)",
    718: "a jump to code that is not there (invalid program counter)",
    719: "a fault in device code (launch failure)",
    721: "a launch from device code that failed",
}
# What cuLaunchKernelEx and cuFuncSetAttribute say to a configuration that cannot be.
LAUNCH_ERRORS = {
    1: "a size or an attribute is out of range (invalid value)",
    98: "no such function on this device",
    101: "no such device",
    209: "no code for this device in the object",
    218: "PTX that does not assemble",
    500: "no such function in the object",
    701: "too many registers, threads or bytes of shared memory a block (out of resources)",
    720: "more blocks than fit on the device at once (cooperative launch too large)",
    801: "not supported on this device",
    912: "a cluster of a size that this device does not have",
}


class CudaError(Exception):
    """A driver call failed; `code` is its CUresult."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: CUDA error {code}")
        self.code = code
        self.what = what


def ck(result: Any, what: str = "a driver call") -> Any:
    """The values of a call of cuda.bindings.driver, without their CUresult. Raises CudaError."""
    code = int(result[0])
    if code != 0:
        from cuda.bindings import driver

        told = driver.cuGetErrorName(result[0])[1]
        name = told.decode() if isinstance(told, bytes) else str(told)
        raise CudaError(code, f"{what}: {name}")
    return result[1] if len(result) == 2 else result[1:]


def open_device(ordinal: int) -> tuple[Any, Any]:
    """Device and its primary context, made current in this thread. Raises CudaError."""
    from cuda.bindings import driver

    ck(driver.cuInit(0), "cuInit")
    device = ck(driver.cuDeviceGet(ordinal), "cuDeviceGet")
    context = ck(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    ck(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    return device, context


class Mapped:
    """Device memory made with the driver's virtual-memory calls, mapped at `address`; ours or imported."""

    def __init__(self, ordinal: int, size: int, *, imported_fd: int | None = None, exportable: bool = False) -> None:
        from cuda.bindings import driver

        kind = driver.CUmemAllocationHandleType
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        by_fd = kind.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        if exportable:
            properties.requestedHandleTypes = by_fd
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        grain = int(ck(driver.cuMemGetAllocationGranularity(properties, minimum), "cuMemGetAllocationGranularity"))
        self.size = -(-size // grain) * grain
        if imported_fd is None:
            self._handle = ck(driver.cuMemCreate(self.size, properties, 0), f"cuMemCreate of {self.size} bytes")
        else:
            self._handle = ck(driver.cuMemImportFromShareableHandle(imported_fd, by_fd), "import of the arena")
        self.fd = int(ck(driver.cuMemExportToShareableHandle(self._handle, by_fd, 0), "export")) if exportable else -1
        self.address = int(ck(driver.cuMemAddressReserve(self.size, 0, 0, 0), "cuMemAddressReserve"))
        ck(driver.cuMemMap(self.address, self.size, 0, self._handle, 0), "cuMemMap")
        access = driver.CUmemAccessDesc()
        access.location = properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ck(driver.cuMemSetAccess(self.address, self.size, [access], 1), "cuMemSetAccess")

    def close(self) -> None:
        import os

        from cuda.bindings import driver

        if self.address:
            driver.cuMemUnmap(self.address, self.size)
            driver.cuMemAddressFree(self.address, self.size)
            driver.cuMemRelease(self._handle)
            self.address = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
