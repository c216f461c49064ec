# Whether the kill matrix catches a mistake: PROGRAM [ARGUMENTS], run with `--sabotage MISTAKE`, must
# end with status 1 and say that the mistake has done the HARM that it must do.
#
#   cmake -D PROGRAM=... -D MISTAKE=no-recheck -D HARM=early -D ARGUMENTS="--seconds 20" -P catches.cmake
#
# HARM: early; or lost, and of what kind: "not back", "name". Both the line that names the kind and
# the last line's count are looked at. (ctest itself looks at the text or at the status, not at both.)
if(HARM STREQUAL "early")
  set(counted "early")
else()
  set(counted "lost")
endif()
separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
execute_process(COMMAND ${PROGRAM} --sabotage ${MISTAKE} ${arguments} RESULT_VARIABLE status
                OUTPUT_VARIABLE output)
message("${output}")
if(NOT status STREQUAL "1")
  message(FATAL_ERROR "${MISTAKE}: status ${status}, where 1 says that something was found")
endif()
if(NOT output MATCHES "mistake ${MISTAKE} must do harm \\(${HARM}\\): done [1-9]")
  message(FATAL_ERROR "${MISTAKE}: its harm (${HARM}) was not seen")
endif()
if(NOT output MATCHES "\nkills=[0-9]+ sends=[0-9]+ [^\n]*${counted}=[1-9][^\n]*\n$")
  message(FATAL_ERROR "${MISTAKE}: the last line counts nothing as ${counted}")
endif()
