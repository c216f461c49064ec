# Presets cannot name Ninja (a machine may lack it) nor the number of cores, and make builds one file
# at a time unless told otherwise. So the presets build a target of ours, which builds in parallel
# under either generator.

# As many compilers at once as there are cores, and 2 GB of memory for each.
if(DEFINED ENV{CMAKE_BUILD_PARALLEL_LEVEL})
  set(LIMBO_BUILD_JOBS $ENV{CMAKE_BUILD_PARALLEL_LEVEL})
else()
  include(ProcessorCount)
  ProcessorCount(LIMBO_BUILD_JOBS)
  cmake_host_system_information(RESULT limbo_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
  math(EXPR limbo_fit "${limbo_memory_mib} / 2000")
  if(limbo_fit LESS LIMBO_BUILD_JOBS)
    set(LIMBO_BUILD_JOBS ${limbo_fit})
  endif()
  if(LIMBO_BUILD_JOBS LESS 1)
    set(LIMBO_BUILD_JOBS 1)
  endif()
endif()

# limbo_add_parallel_build(NAME targets...) or (NAME FOLDERS folders...): a target NAME that builds
# the given ones, or everything that is made in the given folders.
function(limbo_add_parallel_build name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS")
  set(targets ${arg_UNPARSED_ARGUMENTS})
  if(CMAKE_GENERATOR MATCHES "Makefiles")
    if(arg_FOLDERS)
      set(targets all) # make would work on named targets one after the other
    endif()
    add_custom_target(
      ${name}
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/build_in_parallel.sh ${CMAKE_COMMAND}
              ${PROJECT_BINARY_DIR} ${LIMBO_BUILD_JOBS} ${targets}
      USES_TERMINAL VERBATIM)
  else()
    if(arg_FOLDERS)
      limbo_built_targets(targets ${arg_FOLDERS})
    endif()
    add_custom_target(${name})
    add_dependencies(${name} ${targets})
  endif()
endfunction()

# RESULT: every library and program that is made in the given folders.
function(limbo_built_targets result)
  set(found "")
  foreach(folder IN LISTS ARGN)
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
      get_target_property(type ${target} TYPE)
      if(type MATCHES "EXECUTABLE|LIBRARY" AND NOT type STREQUAL "INTERFACE_LIBRARY")
        list(APPEND found ${target})
      endif()
    endforeach()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()
