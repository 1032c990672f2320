# cmake -D ABIDW=… -D ABIDIFF=… -D LIBRARY=… -D HEADERS=… -D GOLDEN=… -P types.cmake: the library, which has debug
# information, still takes and returns the types that the golden file says. Bits of abidiff's exit status: 1 and 2 an
# error, 4 a change, 8 one that breaks programs for certain. It leaves moved fields to the reader, hence the words that
# are looked for. -D WRITE=1 writes the file.

cmake_minimum_required(VERSION 3.22)

if(NOT ABIDW OR NOT ABIDIFF)
  message("skipped: abidw and abidiff were not found (Debian: abigail-tools)")
  return()
endif()

if(WRITE)
  execute_process(
    COMMAND "${ABIDW}" --headers-dir "${HEADERS}" --no-corpus-path --no-comp-dir-path --no-show-locs --drop-private-types
            --exported-interfaces-only
            --out-file "${GOLDEN}" "${LIBRARY}"
    COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()

execute_process(COMMAND "${ABIDIFF}" --no-architecture "${GOLDEN}" "${LIBRARY}"
                OUTPUT_VARIABLE report ERROR_VARIABLE errors RESULT_VARIABLE status)
if(NOT status MATCHES "^[0-9]+$")
  message(FATAL_ERROR "${ABIDIFF}: ${status}")
endif()
math(EXPR is_error "${status} & 3")
math(EXPR is_change "${status} & 4")
math(EXPR is_break "${status} & 8")
if(is_error)
  message(FATAL_ERROR "${ABIDIFF} failed with ${status}: ${errors}${report}")
elseif(is_break OR report MATCHES "offset changed|deletion|return type changed|of (type )?'[^']*' changed")
  message(FATAL_ERROR "programs that are built already would break:\n${report}")
elseif(is_change)
  message(FATAL_ERROR "types have changed; abidiff leaves it to a reader whether programs built before notice:\n${report}\n"
    "If they do not (fields at the end of a struct with struct_size), write ${GOLDEN} anew:\n  cmake -D ABIDW=${ABIDW} "
    "-D ABIDIFF=${ABIDIFF} -D LIBRARY=${LIBRARY} -D HEADERS=${HEADERS} -D GOLDEN=${GOLDEN} -D WRITE=1 "
    "-P ${CMAKE_CURRENT_LIST_FILE}")
endif()
