# What is installed: the libraries, the headers that programs include, beside the core the companion
# that the simulated device starts, and what find_package(limbo) reads. In a wheel the prefix is the
# folder of the Python package. The target `uninstall` removes all of it again.
include(CMakePackageConfigHelpers)

install(TARGETS limbo_core EXPORT limboCoreTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET limbo_sim_companion)
  set_target_properties(limbo_sim_companion PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS limbo_sim_companion RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
limbo_install_headers(allocator/error.h allocator/options.h ipc/sharing.h)

set(limbo_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/limbo)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/limboConfig.cmake.in ${PROJECT_BINARY_DIR}/limboConfig.cmake
  INSTALL_DESTINATION ${limbo_package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change what programs see.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/limboConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/limboConfig.cmake ${PROJECT_BINARY_DIR}/limboConfigVersion.cmake
        DESTINATION ${limbo_package_dir})
install(EXPORT limboCoreTargets NAMESPACE limbo:: DESTINATION ${limbo_package_dir})
if(TARGET limbo_torch)
  install(EXPORT limboTorchTargets NAMESPACE limbo:: DESTINATION ${limbo_package_dir})
  # A program finds its torch as this build did.
  install(
    FILES cmake/limboTorch.cmake cmake/LimboPython.cmake cmake/LimboCuda.cmake cmake/LimboPip.cmake
          cmake/probe_python.py hooks/cmake/LimboTorch.cmake
    DESTINATION ${limbo_package_dir})
endif()
if(SKBUILD)
  include(LimboWheel)
elseif(PROJECT_IS_TOP_LEVEL)
  add_custom_target(
    uninstall
    COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt -P
            ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake
    VERBATIM)
endif()
