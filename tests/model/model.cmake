# The model of the sharing protocol. It runs the headers of ipc/protocol with its own memory, and
# links nothing of the product, so that it can make their mistakes.
file(GLOB limbo_model_sources CONFIGURE_DEPENDS model/*.cpp)
add_executable(limbo_model ${limbo_model_sources} ${PROJECT_SOURCE_DIR}/ipc/fail_points.cpp
                           ${PROJECT_SOURCE_DIR}/allocator/error.cpp)
target_include_directories(limbo_model PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(limbo_model PRIVATE LIMBO_WITH_MISTAKES=1)
target_compile_options(limbo_model PRIVATE -O2)
target_link_libraries(limbo_model PRIVATE limbo_warnings Threads::Threads)

# A test for each scenario of the short run, and one for each mistake that a scenario looks for.
file(STRINGS model/short_scenarios.cpp lines REGEX "\\.name = \"")
file(STRINGS model/piece_scenarios.cpp of_pieces REGEX "\\.name = \"")
file(STRINGS model/name_scenarios.cpp of_names REGEX "\\.name = \"")
list(APPEND lines ${of_pieces} ${of_names})
foreach(line ${lines})
  string(REGEX REPLACE ".*\\.name = \"([a-z0-9-]+)\".*" "\\1" scenario "${line}")
  add_test(NAME model.${scenario} COMMAND limbo_model --scenario ${scenario})
  set_tests_properties(model.${scenario} PROPERTIES TIMEOUT 300 LABELS model)
endforeach()

file(GLOB scenario_sources CONFIGURE_DEPENDS model/*scenarios.cpp)
set(looked_for "")
foreach(source ${scenario_sources})
  file(READ ${source} text)
  string(APPEND looked_for "${text}")
endforeach()
file(STRINGS ${PROJECT_SOURCE_DIR}/ipc/protocol/mistakes.h lines REGEX "{Mistake::k[A-Za-z]+, \"")
# No matter of interleavings: README.md says why.
set(not_looked_for global-capture-mode child-drops-life-line)
foreach(line ${lines})
  string(REGEX REPLACE ".*{(Mistake::k[A-Za-z]+), \"([a-z-]+)\".*" "\\1;\\2" names "${line}")
  list(GET names 0 mistake)
  list(GET names 1 name)
  if(looked_for MATCHES "${mistake}[,}]")
    add_test(NAME model.finds.${name} COMMAND limbo_model --finds ${name})
    set_tests_properties(model.finds.${name} PROPERTIES TIMEOUT 300 LABELS model)
  elseif(NOT name IN_LIST not_looked_for)
    message(FATAL_ERROR "No scenario of the model looks for the mistake ${name}.")
  endif()
endforeach()
# And one for each memory order that is taken away.
foreach(order consumers-seq-cst producers-seq-cst releases)
  add_test(NAME model.weakened.${order} COMMAND limbo_model --weaken ${order})
  set_tests_properties(model.weakened.${order} PROPERTIES TIMEOUT 300 LABELS model)
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${scenario_sources}
                                       ${PROJECT_SOURCE_DIR}/ipc/protocol/mistakes.h)
