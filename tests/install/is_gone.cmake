# After an uninstall: fails if any file is left under PLACE.
file(GLOB_RECURSE left LIST_DIRECTORIES false ${PLACE}/*)
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()
if(EXISTS ${PLACE}/include/limbo OR EXISTS ${PLACE}/lib/cmake/limbo)
  message(FATAL_ERROR "folders of Limbo are left under ${PLACE}")
endif()
