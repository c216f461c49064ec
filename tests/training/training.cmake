# A LibTorch program that trains under Limbo: limbo_training. LibTorch's headers are heavy, so all of
# it is compiled as one source.
file(GLOB training_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_executable(limbo_training ${training_sources})
set_target_properties(limbo_training PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
target_link_libraries(limbo_training PRIVATE limbo_test_support limbo::torch limbo_warnings)
target_compile_options(limbo_training PRIVATE ${limbo_suite_options})

# limbo_add_training(NAME STEPS DEVICE ctest properties...)
function(limbo_add_training name steps device)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:limbo_training>
                                -DSTEPS=${steps} -P ${CMAKE_CURRENT_SOURCE_DIR}/training/compare.cmake)
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT LIMBO_DEVICE=${device} ${ARGN})
endfunction()

limbo_add_training(training.simulated 9 simulated LABELS training)
limbo_add_training(gpu.training 30 cuda LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION
                   "There is no CUDA device")
add_test(NAME training.refuses_an_unknown_allocator COMMAND limbo_training --allocator other)
set_tests_properties(training.refuses_an_unknown_allocator
                     PROPERTIES LABELS training PASS_REGULAR_EXPRESSION "limbo or native")
