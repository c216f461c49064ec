# Installing Python packages at configure time, also where Python came without pip.

set(LIMBO_PIP_WHEEL pip-25.3-py3-none-any.whl)
set(LIMBO_PIP_URL
    https://files.pythonhosted.org/packages/44/3c/d717024885424591d5376220b5e836c2d5293ce2011523c9de23ff7bf068/${LIMBO_PIP_WHEEL})
set(LIMBO_PIP_SHA256 9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd)

# limbo_pip(RESULT PYTHON HAS_PIP arguments...): runs pip with its output streamed; RESULT is TRUE
# when it succeeded. Without pip in that Python, pip's own wheel is fetched and run from there.
function(limbo_pip result python has_pip)
  set(${result} FALSE PARENT_SCOPE)
  set(pip -m pip)
  if(NOT has_pip)
    set(wheel ${PROJECT_BINARY_DIR}/${LIMBO_PIP_WHEEL})
    set(hash "")
    if(EXISTS ${wheel})
      file(SHA256 ${wheel} hash)
    endif()
    if(NOT hash STREQUAL LIMBO_PIP_SHA256)
      file(DOWNLOAD ${LIMBO_PIP_URL} ${wheel} STATUS status TIMEOUT 120)
      list(GET status 0 code)
      if(NOT code EQUAL 0)
        list(GET status 1 reason)
        message(STATUS "Limbo: ${python} has no pip, and it could not be fetched: ${reason}")
        return()
      endif()
      file(SHA256 ${wheel} hash)
      if(NOT hash STREQUAL LIMBO_PIP_SHA256)
        message(STATUS "Limbo: what ${LIMBO_PIP_URL} sent is not that file (SHA-256 ${hash})")
        return()
      endif()
    endif()
    set(pip ${wheel}/pip)
  endif()
  # pip dies with this configure run (PR_SET_PDEATHSIG): an orphan would go on writing while the
  # next run starts over in the same folder.
  set(die_with_parent
      "import ctypes, os, sys"
      "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)"
      "os.execv(sys.executable, [sys.executable, '-uE', *sys.argv[1:]])")
  list(JOIN die_with_parent "\n" die_with_parent)
  execute_process(
    COMMAND ${python} -I -c "${die_with_parent}" ${pip} --disable-pip-version-check ${ARGN}
    RESULT_VARIABLE code)
  if(code EQUAL 0)
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# limbo_pip_target(RESULT FOLDER requirements...): installs into FOLDER, which belongs to this build,
# and leaves the user's Python as it is. FOLDER is remade unless it was completed for the same
# requirements before, so that an interrupted installation is never taken for a finished one.
# Options for pip may stand among the requirements.
function(limbo_pip_target result folder)
  set(stamp ${folder}/limbo-complete)
  set(wanted "${LIMBO_PY_executable} ${ARGN}")
  if(EXISTS ${stamp})
    file(READ ${stamp} found)
    if(found STREQUAL wanted)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
  endif()
  file(REMOVE_RECURSE ${folder})
  list(JOIN ARGN " " text)
  message(STATUS "Limbo: installing ${text} into ${folder}")
  # What is asked for here has a fallback: without a network, get there soon.
  limbo_pip(done ${LIMBO_PY_executable} "${LIMBO_PY_has_pip}" install --retries 1 --timeout 20
            --target ${folder} ${ARGN})
  if(done)
    file(WRITE ${stamp} "${wanted}")
  endif()
  set(${result} ${done} PARENT_SCOPE)
endfunction()
