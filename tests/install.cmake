# What users install: the wheel, on which the Python tests run, and a prefix that find_package reads.

# limbo_installed_site is where the wheel is installed; empty where it cannot be made (no network for
# scikit-build-core, or no pip).
set(limbo_installed_site "")
set(limbo_wheel_packages "")
if(TARGET limbo_torch)
  set(limbo_can_make_wheel ${LIMBO_PY_has_scikit_build_core})
  if(NOT limbo_can_make_wheel AND LIMBO_PY_has_pip)
    file(STRINGS ${PROJECT_SOURCE_DIR}/requirements-test.txt limbo_requirement
         REGEX "^scikit-build-core")
    set(limbo_wheel_packages ${PROJECT_BINARY_DIR}/wheel-packages)
    limbo_pip_target(limbo_can_make_wheel ${limbo_wheel_packages} ${limbo_requirement})
  endif()
  if(limbo_can_make_wheel AND LIMBO_PY_has_pip)
    set(limbo_installed ${CMAKE_CURRENT_BINARY_DIR}/installed)
    set(limbo_installed_site ${limbo_installed}/site)
    add_test(
      NAME install.wheel
      COMMAND ${CMAKE_COMMAND} -DPYTHON=${LIMBO_PY_executable} -DSOURCE=${PROJECT_SOURCE_DIR}
              -DBUILD=${PROJECT_BINARY_DIR} -DPLACE=${limbo_installed}
              -DPACKAGES=${limbo_wheel_packages}
              -P ${CMAKE_CURRENT_SOURCE_DIR}/install/install_wheel.cmake)
    set_tests_properties(install.wheel PROPERTIES FIXTURES_SETUP limbo_wheel RESOURCE_LOCK manifest
                                                  LABELS install)
  else()
    message(STATUS "Limbo: no wheel can be made (${LIMBO_PY_executable} lacks pip or "
                   "scikit-build-core); the Python tests run on the source tree")
  endif()
endif()

# limbo_test_find_package(NAME PREFIX FIXTURE options...): builds tests/find_package against PREFIX
# and runs its programs.
function(limbo_test_find_package name prefix fixture)
  set(place ${CMAKE_CURRENT_BINARY_DIR}/${name})
  add_test(
    NAME ${name}
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${CMAKE_CURRENT_SOURCE_DIR}/find_package ${place}
            --build-generator ${CMAKE_GENERATOR} --build-options -DCMAKE_PREFIX_PATH=${prefix}
            -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DLIMBO_PYTHON=${LIMBO_PY_executable} ${ARGN}
            --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
  set_tests_properties(
    ${name} PROPERTIES FIXTURES_REQUIRED ${fixture} TIMEOUT 300 LABELS install ENVIRONMENT
                       "LIMBO_DEVICE=simulated;LIMBO_SIM_MACHINE=${place}.sim")
endfunction()

# limbo_test_exports(NAME FOLDER FIXTURE): what the libraries in FOLDER export is their own. Of
# torch's headers there are functions and variables in limbo::torch that have to be one with torch's.
function(limbo_test_exports name folder fixture)
  if(NOT LIMBO_PY_executable)
    return()
  endif()
  set(check ${LIMBO_PY_executable} ${PROJECT_SOURCE_DIR}/.ci/check_exports.py)
  add_test(NAME ${name}_core COMMAND ${check} ${folder}/$<TARGET_FILE_NAME:limbo_core>)
  set(tests ${name}_core)
  if(TARGET limbo_torch)
    add_test(NAME ${name}_torch COMMAND ${check} --also c10 --also at --also torch --also caffe2
                                        ${folder}/$<TARGET_FILE_NAME:limbo_torch>)
    list(APPEND tests ${name}_torch)
  endif()
  set_tests_properties(${tests} PROPERTIES FIXTURES_REQUIRED ${fixture} LABELS install)
endfunction()

if(NOT LIMBO_SANITIZE)
  set(limbo_prefix ${CMAKE_CURRENT_BINARY_DIR}/prefix)
  add_test(NAME install.prefix COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix
                                       ${limbo_prefix} --strip)
  add_test(NAME install.uninstall COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target
                                          uninstall)
  add_test(NAME install.nothing_is_left
           COMMAND ${CMAKE_COMMAND} -DPLACE=${limbo_prefix}
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/install/is_gone.cmake)
  set_tests_properties(install.prefix PROPERTIES FIXTURES_SETUP limbo_prefix RESOURCE_LOCK manifest)
  set_tests_properties(install.uninstall PROPERTIES FIXTURES_CLEANUP limbo_prefix)
  set_tests_properties(install.nothing_is_left PROPERTIES FIXTURES_CLEANUP limbo_prefix DEPENDS
                                                          install.uninstall)
  set_tests_properties(install.prefix install.uninstall install.nothing_is_left
                       PROPERTIES LABELS install)
  if(TARGET limbo_torch)
    limbo_test_find_package(install.find_package ${limbo_prefix} limbo_prefix)
  else()
    limbo_test_find_package(install.find_package ${limbo_prefix} limbo_prefix -DWITH_TORCH=OFF)
  endif()
  limbo_test_exports(install.exports ${limbo_prefix}/${CMAKE_INSTALL_LIBDIR} limbo_prefix)
  if(limbo_installed_site)
    limbo_test_exports(install.exports_of_wheel ${limbo_installed_site}/torch_limbo/lib limbo_wheel)
    # A wheel is a prefix too.
    limbo_test_find_package(install.find_package_in_wheel ${limbo_installed_site}/torch_limbo
                            limbo_wheel -DWITH_TORCH=ON)
  endif()
endif()
