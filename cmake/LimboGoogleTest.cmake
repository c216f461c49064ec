# GoogleTest: the installed one, else its sources where Debian and Ubuntu put them, else fetched.
find_package(GTest QUIET)
if(NOT TARGET GTest::gtest)
  set(BUILD_GMOCK OFF CACHE INTERNAL "")
  set(INSTALL_GTEST OFF CACHE INTERNAL "")
  if(EXISTS /usr/src/googletest/CMakeLists.txt)
    message(STATUS "Limbo: GoogleTest from /usr/src/googletest")
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
  else()
    message(STATUS "Limbo: fetching GoogleTest 1.14.0")
    include(FetchContent)
    FetchContent_Declare(
      googletest
      URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
      DOWNLOAD_EXTRACT_TIMESTAMP TRUE
      SYSTEM)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()
include(GoogleTest)
