# Which Python, and with it which torch, this build is for. Sets (in the caller's scope, by macro):
#   LIMBO_PY_*    what probe_python.py printed about the chosen Python (LIMBO_PY_executable, ...);
#                 all empty where there is none
#
# The order: LIMBO_PYTHON (cache variable, else environment, read anew at each configure), the
# active python3, `.venv` in the source folder. The first that has the right torch is taken; where
# none has it and the torch part is to be built, `.venv` is made (LimboVenv.cmake).

# An installed package says which torch it is for (limboConfig.cmake); the source tree reads it.
set(LIMBO_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})
if(NOT LIMBO_TORCH_MINOR)
  file(STRINGS ${LIMBO_CMAKE_DIR}/../python_shim/torch_limbo/_version.py LIMBO_TORCH_MINOR
       REGEX "^TORCH_MINOR = ")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" LIMBO_TORCH_MINOR "${LIMBO_TORCH_MINOR}")
endif()

set(limbo_python_keys
    executable version has_pip has_ensurepip has_venv has_pytest has_pytest_timeout has_numpy
    has_scikit_build_core
    cuda_include_dirs cuda_library_dirs torch_dir torch_version torch_cuda torch_has_cuda_library
    torch_cxx11_abi)

# limbo_probe_python(PREFIX COMMAND): sets PREFIX_<key> for every key; PREFIX_executable is empty
# when COMMAND is no Python that runs, PREFIX_problem then says why.
function(limbo_probe_python prefix command)
  foreach(key IN LISTS limbo_python_keys ITEMS problem)
    set(${prefix}_${key} "" PARENT_SCOPE)
  endforeach()
  execute_process(
    COMMAND ${command} -I ${LIMBO_CMAKE_DIR}/probe_python.py
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    string(STRIP "${result} ${errors}" problem)
    set(${prefix}_problem "${problem}" PARENT_SCOPE)
    return()
  endif()
  foreach(key IN LISTS limbo_python_keys)
    if("\n${output}" MATCHES "\n${key}=([^\n]*)")
      set(${prefix}_${key} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# limbo_judge_torch(PREFIX): PREFIX_torch_problem is empty when that Python's torch will do.
function(limbo_judge_torch prefix)
  set(problem "")
  if(NOT ${prefix}_torch_dir)
    set(problem "has no torch")
  elseif(NOT ${prefix}_torch_version MATCHES "^${LIMBO_TORCH_MINOR}\\.")
    set(problem "has torch ${${prefix}_torch_version}, and Limbo is built for ${LIMBO_TORCH_MINOR}")
  elseif(NOT ${prefix}_torch_has_cuda_library)
    set(problem "has torch ${${prefix}_torch_version} without CUDA (no libtorch_cuda.so)")
  endif()
  set(${prefix}_torch_problem "${problem}" PARENT_SCOPE)
endfunction()

macro(limbo_take_python prefix)
  foreach(key IN LISTS limbo_python_keys)
    set(LIMBO_PY_${key} "${${prefix}_${key}}")
  endforeach()
endmacro()

# The Python that the user named, or "".
function(limbo_named_python result)
  if(LIMBO_PYTHON)
    set(${result} "${LIMBO_PYTHON}" PARENT_SCOPE)
  else()
    set(${result} "$ENV{LIMBO_PYTHON}" PARENT_SCOPE)
  endif()
endfunction()

# Takes the named Python, else the active one, whatever torch it has: enough for the core alone,
# which uses it for tests and for CUDA's headers.
macro(limbo_find_python)
  limbo_named_python(limbo_named)
  if(limbo_named)
    limbo_probe_python(limbo_candidate "${limbo_named}")
    if(NOT limbo_candidate_executable)
      message(FATAL_ERROR "LIMBO_PYTHON is \"${limbo_named}\", which does not run as a Python: "
                          "${limbo_candidate_problem}. Name a Python program, or unset it.")
    endif()
  else()
    limbo_probe_python(limbo_candidate python3)
    if(NOT LIMBO_BUILD_TORCH AND NOT limbo_candidate_cuda_include_dirs
       AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/limbo-complete)
      limbo_probe_python(limbo_candidate ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    endif()
  endif()
  limbo_judge_torch(limbo_candidate)
  limbo_take_python(limbo_candidate)
endmacro()

# As above, and insists on the right torch: falls back on `.venv`, and makes it where needed.
macro(limbo_find_python_with_torch)
  limbo_find_python()
  if(limbo_candidate_torch_problem)
    if(limbo_named AND LIMBO_PY_torch_dir)
      message(FATAL_ERROR
        "LIMBO_PYTHON (${LIMBO_PY_executable}) ${limbo_candidate_torch_problem}. Install "
        "torch==${LIMBO_TORCH_MINOR}.* with CUDA there, name another Python, unset LIMBO_PYTHON "
        "(then .venv is made and torch installed in it), or build the core alone with "
        "-DLIMBO_BUILD_TORCH=OFF.")
    endif()
    if(LIMBO_PY_executable)
      message(STATUS "Limbo: ${LIMBO_PY_executable} ${limbo_candidate_torch_problem}; "
                     "using ${PROJECT_SOURCE_DIR}/.venv")
    endif()
    include(LimboVenv)
    limbo_ensure_venv("${LIMBO_PY_executable}")
    limbo_probe_python(limbo_candidate ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    limbo_judge_torch(limbo_candidate)
    if(limbo_candidate_torch_problem OR NOT limbo_candidate_executable)
      message(FATAL_ERROR
        "The Python in ${PROJECT_SOURCE_DIR}/.venv ${limbo_candidate_problem}"
        "${limbo_candidate_torch_problem}. Remove that folder, or name a Python that has torch "
        "${LIMBO_TORCH_MINOR} in LIMBO_PYTHON, and configure again.")
    endif()
    limbo_take_python(limbo_candidate)
  endif()
  message(STATUS "Limbo: torch ${LIMBO_PY_torch_version} of ${LIMBO_PY_executable}")
endmacro()
