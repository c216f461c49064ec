# The fuzz targets. Their kept inputs are a suite like any other; in a build by clang++ for libFuzzer
# (LIMBO_SANITIZE=fuzzer, the preset `fuzz`) each target is a program, limbo_fuzz_<name>.
limbo_add_suite(limbo_fuzz_tests fuzz)
target_compile_definitions(
  limbo_fuzz_tests PRIVATE LIMBO_FUZZ_SEEDS_DIR="${CMAKE_CURRENT_SOURCE_DIR}/fuzz/seeds")

if(LIMBO_SANITIZE STREQUAL "fuzzer")
  set(limbo_fuzz_programs "")
  file(GLOB targets CONFIGURE_DEPENDS fuzz/*_target.cpp)
  foreach(source ${targets})
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "_target$" "" target ${target})
    add_executable(limbo_fuzz_${target} ${source} fuzz/libfuzzer/entry.cpp)
    target_link_libraries(limbo_fuzz_${target} PRIVATE limbo_test_support limbo_warnings)
    target_compile_options(limbo_fuzz_${target} PRIVATE ${limbo_suite_options})
    target_link_options(limbo_fuzz_${target} PRIVATE -fsanitize=fuzzer)
    list(APPEND limbo_fuzz_programs limbo_fuzz_${target})
  endforeach()
  limbo_add_parallel_build(build-fuzz ${limbo_fuzz_programs})
  add_custom_target(
    run-fuzz
    COMMAND ${LIMBO_PY_executable} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/run.py --build
            ${PROJECT_BINARY_DIR}
    USES_TERMINAL VERBATIM)
endif()
