# LIMBO_SANITIZE: "" (none), "address" (with undefined behaviour; the first finding ends the program),
# "thread", or "fuzzer" (as address, and counting what is executed, for libFuzzer: clang++ only). For
# the core alone: torch's libraries are not built for it.
set(LIMBO_SANITIZE "" CACHE STRING "Sanitizer of this build: empty, address, thread or fuzzer")
set_property(CACHE LIMBO_SANITIZE PROPERTY STRINGS "" address thread fuzzer)

if(LIMBO_SANITIZE STREQUAL "address")
  set(limbo_sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(LIMBO_SANITIZE STREQUAL "thread")
  set(limbo_sanitizer_flags -fsanitize=thread)
elseif(LIMBO_SANITIZE STREQUAL "fuzzer")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "LIMBO_SANITIZE=fuzzer needs clang++: add -DCMAKE_CXX_COMPILER=clang++.")
  endif()
  set(limbo_sanitizer_flags -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
elseif(NOT LIMBO_SANITIZE STREQUAL "")
  message(FATAL_ERROR
    "LIMBO_SANITIZE is \"${LIMBO_SANITIZE}\"; it can be empty, address, thread or fuzzer.")
endif()

if(LIMBO_SANITIZE)
  if(LIMBO_BUILD_TORCH)
    message(FATAL_ERROR "LIMBO_SANITIZE works for the core alone: add -DLIMBO_BUILD_TORCH=OFF.")
  endif()
  add_compile_options(${limbo_sanitizer_flags} -fno-omit-frame-pointer)
  add_link_options(${limbo_sanitizer_flags})
endif()

# Under the thread sanitizer a mapping must lie where it keeps a shadow. Where the kernel spreads
# mappings over many random bits it dies at start, or refuses one large mapping in four (seen with
# GCC 12 and 28 bits). So programs run without that, where the system allows it.
if(LIMBO_SANITIZE STREQUAL "thread")
  find_program(LIMBO_SETARCH setarch)
  mark_as_advanced(LIMBO_SETARCH)
  if(LIMBO_SETARCH)
    set(limbo_unspread "${LIMBO_SETARCH};${CMAKE_HOST_SYSTEM_PROCESSOR};-R")
    execute_process(COMMAND ${limbo_unspread} true RESULT_VARIABLE limbo_refused OUTPUT_QUIET
                                                                                 ERROR_QUIET)
    if(limbo_refused EQUAL 0)
      set(CMAKE_CROSSCOMPILING_EMULATOR "${limbo_unspread}")
    endif()
  endif()
endif()
