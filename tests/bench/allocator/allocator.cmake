# What an allocation costs, through torch's interface; README.md in tests/bench. A library with a
# small program before it, because one back end (RMM) exists only inside a Python process.
file(GLOB allocator_bench_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_library(limbo_allocator_bench SHARED ${allocator_bench_sources})
target_link_libraries(limbo_allocator_bench PRIVATE limbo_test_support limbo::torch limbo_warnings)
add_executable(limbo_bench_allocator ${CMAKE_CURRENT_LIST_DIR}/program/main.cpp)
target_link_libraries(limbo_bench_allocator PRIVATE limbo_allocator_bench limbo_warnings)
target_include_directories(limbo_bench_allocator PRIVATE ${PROJECT_SOURCE_DIR})

foreach(way "" --core)
  add_test(NAME bench.allocator_runs${way} COMMAND limbo_bench_allocator --device simulated --quick
                                                   ${way})
  set_tests_properties(bench.allocator_runs${way} PROPERTIES TIMEOUT 120 LABELS bench PROCESSORS 2)
endforeach()
foreach(backend limbo native native-expandable async)
  add_test(NAME gpu.bench_allocator_${backend} COMMAND limbo_bench_allocator --quick --device cuda
                                                       --backend ${backend})
  set_tests_properties(
    gpu.bench_allocator_${backend}
    PROPERTIES TIMEOUT 120 LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION "torch sees no GPU")
endforeach()
add_test(NAME bench.allocator_refuses_an_unknown_backend COMMAND limbo_bench_allocator --backend x)
set_tests_properties(bench.allocator_refuses_an_unknown_backend
                     PROPERTIES LABELS bench PASS_REGULAR_EXPRESSION "--backend takes one of limbo")

# The table of all back ends, which the Python that the build is for makes.
add_test(
  NAME bench.allocator_table_runs
  COMMAND ${LIMBO_PY_executable} ${PROJECT_SOURCE_DIR}/tests/bench/allocator.py --quick --device
          simulated --bench $<TARGET_FILE:limbo_bench_allocator>)
set_tests_properties(
  bench.allocator_table_runs PROPERTIES TIMEOUT 300 LABELS bench PROCESSORS 2 ENVIRONMENT
                                        LIMBO_LIBRARY=$<TARGET_FILE:limbo_torch>)
