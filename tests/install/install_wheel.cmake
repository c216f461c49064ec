# Makes the wheel of a build folder and installs it where the Python tests run on it:
#   cmake -DPYTHON=... -DSOURCE=... -DBUILD=... -DPLACE=... [-DPACKAGES=...] -P install_wheel.cmake
# PLACE/wheel has the wheel, PLACE/site what it installs. PACKAGES: where scikit-build-core lies if
# that Python has none.
file(REMOVE_RECURSE ${PLACE})
if(PACKAGES)
  set(ENV{PYTHONPATH} ${PACKAGES})
endif()
set(ENV{LIMBO_PYTHON} ${PYTHON})
set(pip ${PYTHON} -m pip --disable-pip-version-check)
execute_process(
  COMMAND ${pip} wheel --quiet --no-build-isolation --no-deps --wheel-dir ${PLACE}/wheel
          --config-settings=cmake.source-dir=cmake/wheel_of_build
          --config-settings=cmake.define.LIMBO_BUILD_DIR=${BUILD} ${SOURCE}
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB wheel ${PLACE}/wheel/*.whl)
execute_process(
  COMMAND ${pip} install --quiet --no-deps --no-index --target ${PLACE}/site ${wheel}
  COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "installed ${wheel}")
