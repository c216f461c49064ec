# CUDA's headers, its runtime and NVRTC, each from the packages that belong to torch, else from a
# toolkit of the same major version; another major would bring a second CUDA runtime. Nothing here
# needs nvcc, a driver or a GPU, and nothing links the driver.
#
# Needs what LimboPython.cmake set. Sets
#   LIMBO_CUDA_DRIVER_INCLUDE_DIR   the folder of cuda.h, or "" (then the core is built without CUDA)
#   LIMBO_CUDA_RUNTIME_INCLUDE_DIRS the folders of cuda_runtime_api.h and what it includes
#   LIMBO_CUDA_RUNTIME_LIBRARY      libcudart.so.N
#   LIMBO_NVRTC_DIR                 the folder of libnvrtc.so.N, or ""
# The two for the runtime are only looked for by limbo_find_cuda_runtime (the torch part's need).
include(${CMAKE_CURRENT_LIST_DIR}/LimboPip.cmake)

# The major version that cuda.h in FOLDER states, or "" where there is none.
function(limbo_cuda_major result folder)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS ${folder}/cuda.h)
    file(STRINGS ${folder}/cuda.h line REGEX "^#define CUDA_VERSION +[0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "([0-9]+)$")
      math(EXPR major "${CMAKE_MATCH_1} / 1000")
      set(${result} ${major} PARENT_SCOPE)
    endif()
  endif()
endfunction()

# The folders in which a toolkit may be, best first.
function(limbo_toolkit_roots result)
  set(roots $ENV{CUDA_HOME} $ENV{CUDA_PATH})
  find_program(LIMBO_NVCC nvcc)
  mark_as_advanced(LIMBO_NVCC)
  if(LIMBO_NVCC)
    file(REAL_PATH ${LIMBO_NVCC} nvcc)
    cmake_path(GET nvcc PARENT_PATH folder)
    cmake_path(GET folder PARENT_PATH root)
    list(PREPEND roots ${root})
  endif()
  list(APPEND roots /usr/local/cuda)
  list(REMOVE_DUPLICATES roots)
  set(${result} ${roots} PARENT_SCOPE)
endfunction()

# limbo_find_cuda(): the driver's header and NVRTC. LIMBO_CUDA_MAJOR is torch's where torch is used.
macro(limbo_find_cuda)
  set(LIMBO_CUDA_DRIVER_INCLUDE_DIR "")
  set(LIMBO_CUDA_TOOLKIT "")
  set(LIMBO_CUDA_MAJOR "")
  if(LIMBO_BUILD_TORCH AND LIMBO_PY_torch_cuda MATCHES "^[0-9]+")
    set(LIMBO_CUDA_MAJOR ${CMAKE_MATCH_0})
  endif()
  limbo_toolkit_roots(limbo_roots)
  foreach(root IN LISTS limbo_roots)
    limbo_cuda_major(limbo_major ${root}/include)
    if(limbo_major AND (NOT LIMBO_CUDA_MAJOR OR LIMBO_CUDA_MAJOR EQUAL limbo_major))
      set(LIMBO_CUDA_TOOLKIT ${root})
      break()
    endif()
  endforeach()
  foreach(folder IN LISTS LIMBO_PY_cuda_include_dirs)
    limbo_cuda_major(limbo_major ${folder})
    if(limbo_major AND (NOT LIMBO_CUDA_MAJOR OR LIMBO_CUDA_MAJOR EQUAL limbo_major))
      set(LIMBO_CUDA_DRIVER_INCLUDE_DIR ${folder})
      break()
    endif()
  endforeach()
  if(NOT LIMBO_CUDA_DRIVER_INCLUDE_DIR AND LIMBO_CUDA_TOOLKIT)
    set(LIMBO_CUDA_DRIVER_INCLUDE_DIR ${LIMBO_CUDA_TOOLKIT}/include)
  endif()
  if(LIMBO_CUDA_DRIVER_INCLUDE_DIR)
    limbo_cuda_major(LIMBO_CUDA_MAJOR ${LIMBO_CUDA_DRIVER_INCLUDE_DIR})
    message(STATUS "Limbo: CUDA ${LIMBO_CUDA_MAJOR} headers in ${LIMBO_CUDA_DRIVER_INCLUDE_DIR}")
  else()
    message(STATUS "Limbo: no CUDA headers found; the core is built for the simulated device only")
  endif()
  limbo_find_cuda_library(LIMBO_NVRTC_LIBRARY nvrtc)
  set(LIMBO_NVRTC_DIR "")
  if(LIMBO_NVRTC_LIBRARY)
    cmake_path(GET LIMBO_NVRTC_LIBRARY PARENT_PATH LIMBO_NVRTC_DIR)
  endif()
endmacro()

# RESULT: lib<NAME>.so.<major>, from the packages, torch itself or the toolkit; else "".
function(limbo_find_cuda_library result name)
  set(${result} "" PARENT_SCOPE)
  foreach(folder IN LISTS LIMBO_PY_cuda_library_dirs ITEMS ${LIMBO_PY_torch_dir}/lib
                          ${LIMBO_CUDA_TOOLKIT}/lib64 ${LIMBO_CUDA_TOOLKIT}/lib
                          ${LIMBO_CUDA_TOOLKIT}/lib/x86_64-linux-gnu)
    if(EXISTS ${folder}/lib${name}.so.${LIMBO_CUDA_MAJOR})
      set(${result} ${folder}/lib${name}.so.${LIMBO_CUDA_MAJOR} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# limbo_cuda_runtime_problem is empty when both were found.
macro(limbo_find_cuda_runtime)
  limbo_find_runtime_headers(LIMBO_CUDA_RUNTIME_INCLUDE_DIRS)
  limbo_find_cuda_library(LIMBO_CUDA_RUNTIME_LIBRARY cudart)
  set(limbo_cuda_runtime_problem "")
  if(NOT LIMBO_CUDA_RUNTIME_INCLUDE_DIRS OR NOT LIMBO_CUDA_RUNTIME_LIBRARY)
    string(CONCAT limbo_cuda_runtime_problem
      "torch ${LIMBO_PY_torch_version} in ${LIMBO_PY_executable} uses CUDA ${LIMBO_PY_torch_cuda}, "
      "and the headers or the runtime (libcudart.so.${LIMBO_CUDA_MAJOR}) of that major version were "
      "not found: neither in torch's packages (with nvidia-cuda-crt, which needs a network once) nor "
      "in a toolkit. Install nvidia-cuda-crt==${LIMBO_PY_torch_cuda}.* into that Python, or a toolkit "
      "of that major version (nvcc on PATH, CUDA_HOME or /usr/local/cuda)")
  endif()
endmacro()

# The include folders that make cuda_runtime_api.h compile, or "".
function(limbo_find_runtime_headers result)
  set(${result} "" PARENT_SCOPE)
  set(folders "")
  foreach(folder IN LISTS LIMBO_PY_cuda_include_dirs)
    # Under CUDA 12 every library has a folder of its own; unrelated majors are left out.
    if(folder MATCHES "/nvidia/cu[0-9]+/include$"
       AND NOT folder MATCHES "/nvidia/cu${LIMBO_CUDA_MAJOR}/include$")
      continue()
    endif()
    list(APPEND folders ${folder})
  endforeach()
  find_file(runtime_api cuda_runtime_api.h PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  find_file(crt crt/host_defines.h PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  if(runtime_api AND NOT crt AND LIMBO_CUDA_MAJOR GREATER_EQUAL 13)
    set(target ${PROJECT_BINARY_DIR}/cuda-crt)
    limbo_pip_target(installed ${target} --no-deps nvidia-cuda-crt==${LIMBO_PY_torch_cuda}.*)
    set(crt ${target}/nvidia/cu${LIMBO_CUDA_MAJOR}/include/crt/host_defines.h)
    if(installed AND EXISTS ${crt})
      list(APPEND folders ${target}/nvidia/cu${LIMBO_CUDA_MAJOR}/include)
    else()
      set(crt crt-NOTFOUND)
    endif()
  endif()
  if(runtime_api AND crt)
    set(${result} ${folders} PARENT_SCOPE)
  elseif(LIMBO_CUDA_TOOLKIT AND EXISTS ${LIMBO_CUDA_TOOLKIT}/include/cuda_runtime_api.h)
    message(STATUS "Limbo: CUDA runtime headers of the toolkit in ${LIMBO_CUDA_TOOLKIT}")
    set(${result} ${LIMBO_CUDA_TOOLKIT}/include PARENT_SCOPE)
  endif()
endfunction()
