# The recorded traces as tests: each must complete within 1.01 times the smallest memory limit under
# which PyTorch's native allocator completes it. The ratios are tests/data/README.md's.
if(TARGET limbo_torch)
  # --backend native; the replayed allocator itself has no use for torch.
  target_compile_definitions(limbo_replay PRIVATE LIMBO_REPLAY_WITH_TORCH=1)
  target_link_libraries(limbo_replay PRIVATE limbo_dep::torch_cuda)
endif()

set(limbo_traces ${PROJECT_SOURCE_DIR}/tests/data/traces)
add_test(NAME tools.replay_finds_the_limit COMMAND limbo_replay --find-limit --json
                                                   ${limbo_traces}/multistream.trace)
set_tests_properties(
  tools.replay_finds_the_limit
  PROPERTIES TIMEOUT 120 LABELS tools
             PASS_REGULAR_EXPRESSION
             "\"events\":552,\"requested_bytes\":254150072,\"completed\":true.*\"smallest_limit_bytes\":[0-9]")
add_test(NAME tools.replay_by_several_threads COMMAND limbo_replay --threads 4
                                                      ${limbo_traces}/multistream.trace)
set_tests_properties(tools.replay_by_several_threads PROPERTIES TIMEOUT 120 LABELS tools)
# Less than is requested is never enough: a held trace can fail.
add_test(NAME tools.replay_sees_too_little_memory
         COMMAND limbo_replay --hold-to 1 ${limbo_traces}/multistream.trace)
set_tests_properties(tools.replay_sees_too_little_memory
                     PROPERTIES TIMEOUT 120 LABELS tools PASS_REGULAR_EXPRESSION "OUT OF MEMORY")
add_test(NAME tools.replay_refuses_native_without_a_gpu COMMAND limbo_replay --backend native x)
set_tests_properties(tools.replay_refuses_native_without_a_gpu
                     PROPERTIES LABELS tools PASS_REGULAR_EXPRESSION "runs on a GPU only")

if(NOT LIMBO_SANITIZE)
  # On a GPU, also on PyTorch's allocator, where there is one.
  add_test(NAME gpu.replay COMMAND limbo_replay --device cuda ${limbo_traces}/multistream.trace)
  set(limbo_gpu_replays gpu.replay)
  if(TARGET limbo_torch)
    add_test(NAME gpu.replay_native COMMAND limbo_replay --device cuda --backend native --find-limit
                                            ${limbo_traces}/multistream.trace)
    list(APPEND limbo_gpu_replays gpu.replay_native)
  endif()
  set_tests_properties(
    ${limbo_gpu_replays} PROPERTIES TIMEOUT 120 LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION
                                    "There is no CUDA device")
endif()

# Most are compressed: without zlib these fail, rather than be missing.
foreach(entry gpt_train_varlen.trace.gz=1.113 gpt_train_ckpt.trace.gz=1.189
              gpt_decode.trace.gz=1.154 rl_colocated.trace.gz=1.387 moe_train.trace.gz=1.169
              unet_infer_multires.trace.gz=1.449 multistream.trace=1.057)
  string(REGEX MATCH "^([^.]+)(\\.[^=]*)=(.*)$" parts ${entry})
  add_test(NAME tools.replay_fits_${CMAKE_MATCH_1}
           COMMAND limbo_replay --hold-to ${CMAKE_MATCH_3}
                   ${limbo_traces}/${CMAKE_MATCH_1}${CMAKE_MATCH_2})
  set_tests_properties(tools.replay_fits_${CMAKE_MATCH_1} PROPERTIES TIMEOUT 120 LABELS tools)
endforeach()
