# The Python tests: each file under python/, python/gpu/ and gpu/several/ is one entry of ctest, run by
# pytest on the Python that the build is for, and on the installed wheel (install.cmake) where there
# is one. Cases that were skipped are in pytest's own report, which
# report-tests reads.

# pytest and what the tests import besides torch; a Python of the user's is left as it is.
if(limbo_installed_site)
  set(limbo_python_path ${limbo_installed_site})
else()
  set(limbo_python_path ${PROJECT_SOURCE_DIR}/python_shim)
endif()
set(limbo_missing "")
set(limbo_pytest_problem "")
file(STRINGS ${PROJECT_SOURCE_DIR}/requirements-test.txt limbo_requirements REGEX "^[a-z]")
foreach(module numpy pytest pytest_timeout)
  if(NOT LIMBO_PY_has_${module})
    string(REPLACE _ - package ${module})
    foreach(requirement IN LISTS limbo_requirements)
      if(requirement MATCHES "^${package}[=<>~]")
        list(APPEND limbo_missing ${requirement})
      endif()
    endforeach()
  endif()
endforeach()
if(limbo_missing)
  set(limbo_packages ${PROJECT_BINARY_DIR}/python-packages)
  limbo_pip_target(limbo_installed ${limbo_packages} ${limbo_missing})
  if(limbo_installed)
    string(APPEND limbo_python_path ":${limbo_packages}")
  else()
    list(JOIN limbo_missing " " limbo_pytest_problem)
    set(limbo_pytest_problem "${LIMBO_PY_executable} lacks ${limbo_pytest_problem}")
    message(WARNING "The Python tests will be reported as not run: ${limbo_pytest_problem}, and "
                    "they could not be installed into the build folder (no network?).")
  endif()
endif()

# limbo_add_python_tests(FOLDER PREFIX environment...)
function(limbo_add_python_tests folder prefix)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/test_*.py)
  foreach(file IN LISTS files)
    cmake_path(GET file STEM stem)
    set(name ${prefix}${stem})
    if(limbo_pytest_problem)
      add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "not run: ${limbo_pytest_problem}")
      set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^not run: ")
      continue()
    endif()
    # A runtime directory and a simulated machine for each file: they run side by side.
    set(place ${CMAKE_CURRENT_BINARY_DIR}/python/${name})
    file(MAKE_DIRECTORY ${place}/run)
    file(CHMOD ${place}/run DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    add_test(
      NAME ${name}
      COMMAND ${LIMBO_PY_executable} -m pytest -rs --timeout 120 -p no:cacheprovider
              --junitxml ${PROJECT_BINARY_DIR}/Testing/pytest/${name}.xml ${file}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(
      ${name}
      PROPERTIES TIMEOUT 600
                 SKIP_RETURN_CODE 5 # pytest's for "nothing to run": the file skips itself as a whole
                 LABELS python
                 COST 60 # they take longest: none of them is left alone at the end
                 ENVIRONMENT
                 "PYTHONPATH=${limbo_python_path};LIMBO_RUNTIME_DIR=${place}/run;\
LIMBO_SIM_MACHINE=${place}/sim;${ARGN}")
    if(limbo_installed_site)
      set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED limbo_wheel)
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
                                                LIMBO_TEST_INSTALLED=${limbo_installed})
    else()
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
                                                LIMBO_LIBRARY=$<TARGET_FILE:limbo_torch>)
    endif()
    if(prefix MATCHES "gpu")
      set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
    endif()
  endforeach()
endfunction()

limbo_add_python_tests(${CMAKE_CURRENT_SOURCE_DIR}/python python. LIMBO_DEVICE=simulated)
limbo_add_python_tests(${CMAKE_CURRENT_SOURCE_DIR}/python/gpu python.gpu. LIMBO_DEVICE=auto)
limbo_add_python_tests(${CMAKE_CURRENT_SOURCE_DIR}/gpu/several python.gpu.several. LIMBO_DEVICE=cuda)
