include(GNUInstallDirs)

# limbo_install_headers(headers...): each a path from the root, with every header of ours that it
# includes, and so on; includes say the same path in an installed tree.
function(limbo_install_headers)
  get_property(done GLOBAL PROPERTY limbo_installed_headers)
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open header)
    if(header IN_LIST done)
      continue()
    endif()
    list(APPEND done ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${PROJECT_SOURCE_DIR}/${header}
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/limbo/${folder})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"")
    list(TRANSFORM lines REPLACE "^#include \"(.*)\".*" "\\1")
    list(APPEND open ${lines})
  endwhile()
  set_property(GLOBAL PROPERTY limbo_installed_headers ${done})
endfunction()
