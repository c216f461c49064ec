"""A kernel that writes a tensor for a given time, compiled with the NVRTC that torch brings."""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Any

import torch

SOURCE = r"""
extern "C" __global__ void write_for(unsigned int* data, unsigned long long words,
                                     unsigned long long duration_ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned int round = 0;
  do {
    for (int k = 0; k < 64; ++k) {
      if (at >= words) {
        at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
        ++round;
      }
      if (at < words) ((volatile unsigned int*)data)[at] = 0xD0000000u + round;
      at += step;
    }
    __threadfence_system();
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < duration_ns);
}
"""


def _nvrtc() -> ctypes.CDLL:
    assert torch.version.cuda is not None
    name = "libnvrtc.so." + torch.version.cuda.split(".")[0]
    try:
        return ctypes.CDLL(name)
    except OSError:
        site = os.path.dirname(os.path.dirname(torch.__file__))
        paths = glob.glob(os.path.join(site, "nvidia", "**", name), recursive=True)
        if not paths:
            raise
        return ctypes.CDLL(paths[0])


def compile_cubin(source: str, name: str, architecture: str) -> bytes:
    """A binary of `source` for `architecture` ("sm_90"); RuntimeError with the compiler's log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None
    )
    if created != 0:
        raise RuntimeError(f"nvrtcCreateProgram: {created}")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    compiled = nvrtc.nvrtcCompileProgram(program, 1, options)
    size = ctypes.c_size_t()
    if compiled != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"nvrtcCompileProgram: {compiled}\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


class WriteFor:
    """`write_for(tensor, seconds)` launches the kernel on the current stream and returns."""

    def __init__(self) -> None:
        from torch.cuda._utils import _cuda_load_module

        scratch = torch.zeros(1024, dtype=torch.int32, device="cuda")  # makes a context current
        major, minor = torch.cuda.get_device_capability()
        binary = compile_cubin(SOURCE, "write_for", f"sm_{major}{minor}")
        loaded: Any = _cuda_load_module(binary, ["write_for"])
        self._kernel = loaded["write_for"]
        # Launch once now: CUDA loads kernels lazily, and a first launch may wait for the device.
        self(scratch, 0.0)
        torch.cuda.synchronize()

    def __call__(self, tensor: torch.Tensor, seconds: float) -> None:
        arguments = [_U64(tensor.data_ptr()), _U64(tensor.numel()), _U64(int(seconds * 1e9))]
        _launch(self._kernel, arguments)


class _U64(int):
    """An argument of 64 bits."""


def _launch(kernel: Any, arguments: list[_U64]) -> None:
    from torch.cuda._utils import _check_cuda, _get_gpu_runtime_library

    driver = _get_gpu_runtime_library()
    values = [ctypes.c_uint64(argument) for argument in arguments]
    pointers = (ctypes.c_void_p * len(values))(
        *[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
    )
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check_cuda(driver.cuLaunchKernel(kernel.func, 8, 1, 1, 256, 1, 1, 0, stream, pointers, None))
