# catches.cmake itself: it must fail where a mistake does nothing, does other harm, or where the kill
# matrix ends in another way. PROGRAM is the kill matrix; FOLDER a place for a stand-in.
set(catches ${CMAKE_CURRENT_LIST_DIR}/catches.cmake)

# Runs the check; `expected` is what its complaint must say, or nothing: it must be content.
function(check expected program mistake harm)
  list(JOIN ARGN " " arguments)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -D "PROGRAM=${program}" -D MISTAKE=${mistake} -D "HARM=${harm}" -D
            "ARGUMENTS=${arguments}" -P ${catches}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(expected STREQUAL "" AND NOT status STREQUAL "0")
    message(SEND_ERROR "refused: ${program} ${ARGN}\n${output}")
  elseif(NOT expected STREQUAL "" AND (status STREQUAL "0" OR NOT output MATCHES "${expected}"))
    message(SEND_ERROR "not refused by \"${expected}\": ${program} ${ARGN}\n${output}")
  endif()
endfunction()

# A stand-in that says what it is told to, and ends as it is told to.
file(WRITE ${FOLDER}/stand_in.sh [=[
#!/bin/sh
# stand_in.sh END HARM-LINE LAST-LINE --sabotage NAME
echo "The mistake $5 must do harm $2"
echo "kills=9 sends=99 $3 hung=0 fds=+0"
[ "$1" = killed ] && kill -KILL $$
exit "$1"
]=])
set(stand_in "sh;${FOLDER}/stand_in.sh")
check("" "${stand_in};1;(early): done 2 times.;lost=0 early=2" no-recheck early)
check("" "${stand_in};1;(not back): done 1 times.;lost=1 early=0" dirty-first "not back")
check("status 0" "${stand_in};0;(early): done 2 times.;lost=0 early=2" no-recheck early)
check("status 2" "${stand_in};2;(early): done 2 times.;lost=0 early=2" no-recheck early)
check("killed" "${stand_in};killed;(early): done 2 times.;lost=0 early=2" no-recheck early)
check("not seen" "${stand_in};1;(early): done 0 times.;lost=3 early=0" no-recheck early)
check("not seen" "${stand_in};1;(other): done 3 times.;lost=3 early=0" dirty-first "not back")
check("counts nothing" "${stand_in};1;(early): done 1 times.;lost=3 early=0" no-recheck early)

# The kill matrix itself, with nobody who makes the mistake, and with one that does other harm.
check("status 2" ${PROGRAM} nothing early)
check("status 0" ${PROGRAM} no-lifeline early --harmless --seconds 3)
check("not seen" ${PROGRAM} names-unlocked early --seconds 20)
