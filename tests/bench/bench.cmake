# What sharing costs, against its budgets; README.md in this folder. Under ctest it runs with small
# numbers, to see that everything in it works; speed is never asserted.
file(GLOB bench_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_executable(limbo_bench ${bench_sources})
target_link_libraries(limbo_bench PRIVATE limbo_test_support limbo_warnings)

if(NOT LIMBO_SANITIZE)
  foreach(kind simulated cuda)
    if(kind STREQUAL "cuda")
      set(prefix gpu.bench_)
      set(sends 100000)
      set(properties LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION
                     "There is no CUDA device")
    else()
      set(prefix bench.)
      set(sends 4000)
      set(properties LABELS bench PROCESSORS 2)
    endif()
    add_test(NAME ${prefix}budgets_runs COMMAND limbo_bench --device ${kind} --quick)
    add_test(NAME ${prefix}sends_stay_flat COMMAND limbo_bench sends --device ${kind} --count
                                                   ${sends})
    set_tests_properties(${prefix}budgets_runs ${prefix}sends_stay_flat
                         PROPERTIES TIMEOUT 300 ${properties})
  endforeach()
  foreach(leak descriptors memory events)
    string(REPLACE memory "host KiB" seen ${leak})
    add_test(NAME bench.sends_see_leaking_${leak} COMMAND limbo_bench sends --device simulated
                                                          --count 4000 --leak ${leak})
    set_tests_properties(
      bench.sends_see_leaking_${leak}
      PROPERTIES TIMEOUT 300 LABELS bench PASS_REGULAR_EXPRESSION
                 "The receiver has grown: [^\n]*${seen} by.*flat=no")
  endforeach()
endif()

if(TARGET limbo_torch AND NOT LIMBO_SANITIZE)
  include(${CMAKE_CURRENT_LIST_DIR}/allocator/allocator.cmake)
  # The table of budgets, which the Python that the build is for makes.
  add_test(NAME bench.table_runs
           COMMAND ${LIMBO_PY_executable} ${CMAKE_CURRENT_LIST_DIR}/budgets.py --quick --device
                   simulated --bench $<TARGET_FILE:limbo_bench>)
  add_test(NAME gpu.bench_several
           COMMAND ${LIMBO_PY_executable} ${CMAKE_CURRENT_LIST_DIR}/several.py --quick --bench
                   $<TARGET_FILE:limbo_bench_allocator> --sharing $<TARGET_FILE:limbo_bench>)
  set_tests_properties(
    gpu.bench_several
    PROPERTIES TIMEOUT 300 LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION
               "several.py needs two GPUs" ENVIRONMENT LIMBO_LIBRARY=$<TARGET_FILE:limbo_torch>)
  set_tests_properties(
    bench.table_runs PROPERTIES TIMEOUT 300 LABELS bench PROCESSORS 2 ENVIRONMENT
                                LIMBO_LIBRARY=$<TARGET_FILE:limbo_torch>)
endif()

add_test(NAME bench.refuses_an_unknown_name COMMAND limbo_bench --only nonsense)
set_tests_properties(bench.refuses_an_unknown_name
                     PROPERTIES LABELS bench PASS_REGULAR_EXPRESSION "There is no benchmark")
