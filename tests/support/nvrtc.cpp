#include "tests/support/nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace limbo::testing {
namespace {

// nvrtc.h is not needed for these few: a program is an opaque pointer, results are an enum.
using Program = void*;
struct Nvrtc {
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  const char* (*error_string)(int);
};

std::vector<std::string> candidates() {
  std::vector<std::string> folders;
  const char* from_environment = std::getenv("LIMBO_NVRTC_DIR");
  if (from_environment != nullptr && *from_environment != '\0') folders.push_back(from_environment);
#ifdef LIMBO_NVRTC_DIR
  folders.push_back(LIMBO_NVRTC_DIR);
#endif
  std::vector<std::string> result;
  for (const std::string& folder : folders) {
    if (folder.empty()) continue;
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
      result.push_back((std::filesystem::path(folder) / name).string());
    }
  }
  result.push_back("libnvrtc.so.13");
  result.push_back("libnvrtc.so.12");
  return result;
}

void* open_library() {
  std::string errors;
  for (const std::string& name : candidates()) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    errors += std::string("\n  ") + dlerror();
  }
  throw std::runtime_error("NVRTC cannot be loaded; LIMBO_NVRTC_DIR may name its folder:" + errors);
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("NVRTC lacks ") + name);
}

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = [] {
    void* library = open_library();
    Nvrtc entries{};
    find(library, "nvrtcCreateProgram", entries.create);
    find(library, "nvrtcDestroyProgram", entries.destroy);
    find(library, "nvrtcCompileProgram", entries.compile);
    find(library, "nvrtcGetProgramLogSize", entries.log_size);
    find(library, "nvrtcGetProgramLog", entries.log);
    find(library, "nvrtcGetCUBINSize", entries.cubin_size);
    find(library, "nvrtcGetCUBIN", entries.cubin);
    find(library, "nvrtcGetErrorString", entries.error_string);
    return entries;
  }();
  return loaded;
}

void check(const char* call, int result) {
  if (result == 0) return;
  throw std::runtime_error(std::string(call) + ": " + nvrtc().error_string(result));
}

}  // namespace

std::string compile_cubin(const std::string& source, const std::string& architecture) {
  const Nvrtc& library = nvrtc();
  Program program = nullptr;
  check("nvrtcCreateProgram",
        library.create(&program, source.c_str(), "test_kernels.cu", 0, nullptr, nullptr));
  struct Destroy {
    Program* program;
    ~Destroy() { nvrtc().destroy(program); }
  } const destroy{&program};

  const std::string option = "--gpu-architecture=" + architecture;
  const char* options[] = {option.c_str()};
  const int result = library.compile(program, 1, options);
  if (result != 0) {
    std::size_t size = 0;
    std::string log;
    if (library.log_size(program, &size) == 0) {
      log.resize(size);
      library.log(program, log.data());
    }
    throw std::runtime_error("nvrtcCompileProgram for " + architecture + ": " +
                             library.error_string(result) + "\n" + log);
  }
  std::size_t size = 0;
  check("nvrtcGetCUBINSize", library.cubin_size(program, &size));
  std::string cubin(size, '\0');
  check("nvrtcGetCUBIN", library.cubin(program, cubin.data()));
  return cubin;
}

std::string why_no_nvrtc() {
  try {
    (void)nvrtc();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

}  // namespace limbo::testing
