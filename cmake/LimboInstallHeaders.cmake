include(GNUInstallDirs)

# limbo_install_headers(headers...): each a path from the root without its ending; includes say the
# same path in an installed tree.
function(limbo_install_headers)
  foreach(header IN LISTS ARGN)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${PROJECT_SOURCE_DIR}/${header}.h
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/limbo/${folder})
  endforeach()
endfunction()
