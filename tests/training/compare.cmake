# cmake -DPROGRAM=limbo_training -DSTEPS=N -P compare.cmake: trains under Limbo and under torch's own
# allocator, and fails unless both runs end well and print the same bits in every step.
foreach(allocator limbo native)
  execute_process(
    COMMAND ${PROGRAM} --allocator ${allocator} --steps ${STEPS}
    OUTPUT_VARIABLE output
    ERROR_VARIABLE errors
    RESULT_VARIABLE status)
  message("${output}${errors}")
  if(errors MATCHES "There is no CUDA device")
    return()
  endif()
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "The run under ${allocator} ended with ${status}.")
  endif()
  string(REGEX MATCHALL "step [0-9]+ loss [^\n]*" ${allocator}_steps "${output}")
  list(LENGTH ${allocator}_steps count)
  if(NOT count EQUAL STEPS)
    message(FATAL_ERROR "The run under ${allocator} printed ${count} steps, not ${STEPS}.")
  endif()
endforeach()
if(NOT limbo_steps STREQUAL native_steps)
  message(FATAL_ERROR "The losses differ.")
endif()
message("Equal to the bit under both allocators: ${STEPS} losses, ${STEPS} evaluations.")
