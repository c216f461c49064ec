# LIMBO_SANITIZE: "" (none), "address" (with undefined behaviour; the first finding ends the program)
# or "thread". For the core alone: torch's libraries are not built for it.
set(LIMBO_SANITIZE "" CACHE STRING "Sanitizer of this build: empty, address or thread")
set_property(CACHE LIMBO_SANITIZE PROPERTY STRINGS "" address thread)

if(LIMBO_SANITIZE STREQUAL "address")
  set(limbo_sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(LIMBO_SANITIZE STREQUAL "thread")
  set(limbo_sanitizer_flags -fsanitize=thread)
elseif(NOT LIMBO_SANITIZE STREQUAL "")
  message(FATAL_ERROR "LIMBO_SANITIZE is \"${LIMBO_SANITIZE}\"; it can be empty, address or thread.")
endif()

if(LIMBO_SANITIZE)
  if(LIMBO_BUILD_TORCH)
    message(FATAL_ERROR "LIMBO_SANITIZE works for the core alone: add -DLIMBO_BUILD_TORCH=OFF.")
  endif()
  add_compile_options(${limbo_sanitizer_flags} -fno-omit-frame-pointer)
  add_link_options(${limbo_sanitizer_flags})
endif()

# The thread sanitizer of older compilers dies at start where the kernel spreads mappings over more
# than 28 random bits; such programs are run without that.
if(LIMBO_SANITIZE STREQUAL "thread" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(READ /proc/sys/vm/mmap_rnd_bits limbo_random_bits)
  find_program(LIMBO_SETARCH setarch)
  mark_as_advanced(LIMBO_SETARCH)
  if(limbo_random_bits GREATER 28 AND LIMBO_SETARCH)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${LIMBO_SETARCH};${CMAKE_HOST_SYSTEM_PROCESSOR};-R")
  endif()
endif()
