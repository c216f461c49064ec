// Compiling CUDA source at run time, with the NVRTC that belongs to torch or to a toolkit.
#pragma once

#include <string>

namespace limbo::testing {

// Returns the machine code (a cubin) of `source` for an architecture like "sm_90". The library is
// libnvrtc.so of LIMBO_NVRTC_DIR (environment, else the folder found at configure time, else the
// loader's own search). Throws std::runtime_error: no library, or the compiler's words.
[[nodiscard]] std::string compile_cubin(const std::string& source, const std::string& architecture);

// Why there is no NVRTC here; empty when there is.
[[nodiscard]] std::string why_no_nvrtc();

}  // namespace limbo::testing
