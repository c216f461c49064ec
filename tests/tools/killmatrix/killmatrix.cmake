# The kill matrix as tests: it finds nothing in the product, and its own harm in every sabotaged one.
target_compile_definitions(
  limbo_killmatrix
  PRIVATE LIMBO_WITH_MISTAKES_DIR="${limbo_with_mistakes_dir}"
          LIMBO_SIM_COMPANION_PROGRAM="$<TARGET_FILE:limbo_sim_companion>")
add_dependencies(limbo_killmatrix limbo_sim_companion)
add_test(NAME tools.killmatrix_simulated COMMAND limbo_killmatrix --seed 1 --kills 300 --seconds 20)
set_tests_properties(tools.killmatrix_simulated PROPERTIES TIMEOUT 120 LABELS tools PROCESSORS 2)
add_test(NAME tools.killmatrix_counts_every_way
         COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:limbo_killmatrix> -P
                 ${CMAKE_CURRENT_LIST_DIR}/counts_test.cmake)
set_tests_properties(tools.killmatrix_counts_every_way PROPERTIES TIMEOUT 120 LABELS tools
                                                                  PROCESSORS 2)
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

# Each mistake must be caught by the harm that is its own: MISTAKE=HARM, see catches.cmake. And what
# opens its window does no harm where nobody makes it.
if(NOT LIMBO_SANITIZE)
  set(killmatrix $<TARGET_FILE:limbo_killmatrix>)
  foreach(
    entry
    ttl-on-held=early
    no-lifeline=early
    no-recheck=early
    "dirty-first=not back"
    scan-before-closing=early
    shared-timeline=early
    names-unlocked=name)
    string(REGEX MATCH "^([^=]+)=(.*)$" parts "${entry}")
    set(mistake ${CMAKE_MATCH_1})
    add_test(NAME tools.killmatrix_catches_${mistake}
             COMMAND ${CMAKE_COMMAND} -D PROGRAM=${killmatrix} -D MISTAKE=${mistake} -D
                     "HARM=${CMAKE_MATCH_2}" -D
                     "ARGUMENTS=--kills 100000 --seconds 200 --deadline 6000" -P
                     ${CMAKE_CURRENT_LIST_DIR}/catches.cmake)
    set_tests_properties(tools.killmatrix_catches_${mistake} PROPERTIES TIMEOUT 260 LABELS tools
                                                                        PROCESSORS 2)
    add_test(NAME tools.killmatrix_finds_nothing_without_${mistake}
             COMMAND limbo_killmatrix --sabotage ${mistake} --harmless --kills 100000 --seconds 3)
    set_tests_properties(tools.killmatrix_finds_nothing_without_${mistake}
                         PROPERTIES TIMEOUT 260 LABELS tools PROCESSORS 2)
  endforeach()
  add_test(NAME tools.killmatrix_catches_no_other_harm
           COMMAND ${CMAKE_COMMAND} -D PROGRAM=${killmatrix} -D
                   FOLDER=${CMAKE_CURRENT_BINARY_DIR}/killmatrix -P
                   ${CMAKE_CURRENT_LIST_DIR}/catches_test.cmake)
  set_tests_properties(tools.killmatrix_catches_no_other_harm PROPERTIES TIMEOUT 120 LABELS tools
                                                                         PROCESSORS 2)
endif()
