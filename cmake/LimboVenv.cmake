# `.venv` in the source folder: a Python environment with the pinned torch and what the tests need.
#
# Two marks tell its state. `limbo-incomplete` is written before anything else and removed last;
# `limbo-complete` holds the hash of the requirements that it was completed for. So an installation
# that was interrupted anywhere is remade, one whose requirements changed is brought up to date, and
# a `.venv` that somebody else made is never touched.
include(LimboPip)

function(limbo_ensure_venv base_python)
  set(venv ${PROJECT_SOURCE_DIR}/.venv)
  set(requirements ${PROJECT_SOURCE_DIR}/requirements.txt)
  set(test_requirements ${PROJECT_SOURCE_DIR}/requirements-test.txt)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${requirements} ${test_requirements})
  # Two configure runs at once (two presets, say) take turns.
  file(LOCK ${PROJECT_SOURCE_DIR}/.venv.lock GUARD FUNCTION TIMEOUT 1800)

  file(GLOB content ${venv}/* ${venv}/.*)
  list(FILTER content EXCLUDE REGEX "/\\.\\.?$")
  if(NOT content)
    file(REMOVE_RECURSE ${venv})  # there or not: empty, it is nobody's
  endif()

  file(SHA256 ${requirements} wanted)
  file(SHA256 ${test_requirements} hash)
  string(APPEND wanted " ${hash}")
  if(EXISTS ${venv} AND NOT EXISTS ${venv}/limbo-incomplete)
    if(NOT EXISTS ${venv}/limbo-complete)
      return()  # not ours: the caller takes it as it is, or complains
    endif()
    file(READ ${venv}/limbo-complete found)
    execute_process(COMMAND ${venv}/bin/python -I -c "" RESULT_VARIABLE runs ERROR_QUIET)
    if(runs EQUAL 0 AND found STREQUAL wanted)
      return()
    endif()
    if(NOT runs EQUAL 0)
      message(STATUS "Limbo: the Python in ${venv} no longer runs; making it anew")
      file(WRITE ${venv}/limbo-incomplete "")
    endif()
  endif()

  if(EXISTS ${venv}/limbo-incomplete)
    message(STATUS "Limbo: ${venv} was left unfinished; making it anew")
    # The mark goes last, so that an interruption here is seen as well.
    file(GLOB leftovers ${venv}/* ${venv}/.*)
    list(FILTER leftovers EXCLUDE REGEX "/(limbo-incomplete|\\.|\\.\\.)$")
    file(REMOVE_RECURSE ${leftovers})
  endif()
  if(NOT EXISTS ${venv}/bin/python)
    limbo_make_venv(${venv} "${base_python}")
  endif()
  file(WRITE ${venv}/limbo-incomplete "")
  message(STATUS "Limbo: installing torch and the test tools into ${venv} "
                 "(about 2 GB to fetch, 5 GB on disk)")
  limbo_probe_python(made ${venv}/bin/python)
  limbo_pip(done ${venv}/bin/python "${made_has_pip}" install -r ${requirements})
  if(NOT done)
    message(FATAL_ERROR
      "Limbo could not install ${requirements} into ${venv}; the lines above say why. Without a "
      "network, name a Python that has torch ${LIMBO_TORCH_MINOR} in LIMBO_PYTHON, or build the "
      "core alone with -DLIMBO_BUILD_TORCH=OFF. To try again, run the same command.")
  endif()
  file(WRITE ${venv}/limbo-complete "${wanted}")
  file(REMOVE ${venv}/limbo-incomplete)
endfunction()

function(limbo_make_venv venv base_python)
  if(NOT base_python)
    message(FATAL_ERROR
      "Limbo needs a Python to build for, and there is no python3 on PATH. Install python3 (3.10 or "
      "newer), name one in LIMBO_PYTHON, or build the core alone with -DLIMBO_BUILD_TORCH=OFF.")
  endif()
  limbo_probe_python(base "${base_python}")
  if(base_version VERSION_LESS 3.10)
    message(FATAL_ERROR
      "torch ${LIMBO_TORCH_MINOR} needs Python 3.10 or newer, and ${base_executable} is "
      "${base_version}. Name a newer one in LIMBO_PYTHON, or build the core alone with "
      "-DLIMBO_BUILD_TORCH=OFF.")
  endif()
  message(STATUS "Limbo: making ${venv} with ${base_executable} (Python ${base_version})")
  file(MAKE_DIRECTORY ${venv})
  file(WRITE ${venv}/limbo-incomplete "")
  set(options "")
  if(NOT base_has_ensurepip)
    set(options --without-pip)  # Debian's python3 without python3-venv; limbo_pip gets round it
  endif()
  execute_process(COMMAND ${base_executable} -I -m venv ${options} ${venv} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR
      "\"${base_executable} -m venv ${venv}\" failed; the lines above say why. On Debian and Ubuntu "
      "install python3-venv, or name a Python that has torch ${LIMBO_TORCH_MINOR} in LIMBO_PYTHON.")
  endif()
endfunction()
