# The kill matrix as tests: it finds nothing in the product, and something in every sabotaged one.
target_compile_definitions(
  limbo_killmatrix
  PRIVATE LIMBO_WITH_MISTAKES_DIR="${limbo_with_mistakes_dir}"
          LIMBO_SIM_COMPANION_PROGRAM="$<TARGET_FILE:limbo_sim_companion>")
add_dependencies(limbo_killmatrix limbo_sim_companion)
add_test(NAME tools.killmatrix_simulated COMMAND limbo_killmatrix --seed 1 --kills 300 --seconds 20)
set_tests_properties(tools.killmatrix_simulated PROPERTIES TIMEOUT 120 LABELS tools PROCESSORS 2)
add_test(NAME tools.killmatrix_refuses_an_unknown_option COMMAND limbo_killmatrix --nonsense)
set_tests_properties(tools.killmatrix_refuses_an_unknown_option
                     PROPERTIES PASS_REGULAR_EXPRESSION "There is no option" LABELS tools)
if(NOT LIMBO_SANITIZE)
  add_dependencies(limbo_killmatrix limbo_with_mistakes)
  add_test(NAME gpu.killmatrix COMMAND limbo_killmatrix --device cuda --kills 100 --seconds 90)
  set_tests_properties(
    gpu.killmatrix PROPERTIES TIMEOUT 240 LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION
                              "There is no CUDA device")
endif()

# Each mistake must be caught: something is reused too early, or lost.
if(NOT LIMBO_SANITIZE)
  foreach(mistake ttl-on-held no-lifeline no-recheck dirty-first scan-before-closing
                  shared-timeline names-unlocked)
    add_test(NAME tools.killmatrix_catches_${mistake}
             COMMAND limbo_killmatrix --sabotage ${mistake} --kills 100000 --seconds 200
                     --deadline 6000)
    set_tests_properties(
      tools.killmatrix_catches_${mistake}
      PROPERTIES TIMEOUT 260 LABELS tools PROCESSORS 2 PASS_REGULAR_EXPRESSION
                 "kills=[0-9]+ sends=[0-9]+ (lost=[1-9]|lost=0 early=[1-9])")
  endforeach()
endif()
