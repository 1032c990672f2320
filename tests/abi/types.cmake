# SPDX-License-Identifier: Apache-2.0
# cmake -D ABIDW=… -D ABIDIFF=… -D LIBRARY=… -D HEADERS=… -D GOLDEN=… -P types.cmake: the functions of the library,
# which has debug information, have the types of the golden file. Bits of abidiff's exit status: 1 and 2 an error, 4 a
# change, 8 a change that certainly breaks programs. abidiff reports moved fields only in words, so its output is
# searched for these words. Functions may be added (symbols.golden lists them), and structs may gain members past their
# size in the golden file; nothing else may change. (abidiff's own suppression of members inserted at the end hides all
# other changes of such a struct.) -D WRITE=1 writes the file.

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
  set(headings
    "^Functions changes summary: 0 Removed, [0-9]+ Changed( \\([0-9]+ filtered out\\))?, [0-9]+ Added functions?$"
    "^[0-9]+ Added functions?:$"
    "^'function [^']+' +{[a-z_]+@@ROPE_0}$"
    "^Variables changes summary: 0 Removed, 0 Changed, 0 Added variables?$"
    "^[0-9]+ functions? with some indirect sub-type changes?:$"
    "has some indirect sub-type changes:$"
    "^parameter [0-9]+ of type '[^']+' has sub-type changes:$"
    "^in pointed to type '[^']+':$"
    "^in unqualified underlying type '[^']+' at [^ ]+:$"
    "^underlying type 'struct [^']+' (at [^ ]+ )?changed:$"
    "^[0-9]+ data member insertions?:$")
  list(JOIN headings "|" headings)
  set(is_growth TRUE)
  string(REPLACE ";" "," lines "${report}")
  string(REGEX REPLACE "[[][AC][]] " "" lines "${lines}")  # so that no list element ends inside brackets
  string(REGEX REPLACE "\n" ";" lines "${lines}")
  foreach(line IN LISTS lines)
    string(STRIP "${line}" line)
    if(line MATCHES "^type size changed from ([0-9]+) to [0-9]+ \\(in bits\\)$")
      set(released_size ${CMAKE_MATCH_1})
    elseif(line MATCHES "^'[^']+', at offset ([0-9]+) \\(in bits\\)")
      if(NOT DEFINED released_size OR CMAKE_MATCH_1 LESS released_size)
        set(is_growth FALSE)
      endif()
    elseif(line AND NOT line MATCHES "${headings}")
      set(is_growth FALSE)
    endif()
  endforeach()
  if(is_growth)
    return()
  endif()
  message(FATAL_ERROR "types have changed; abidiff leaves it to a reader whether programs built before notice:\n${report}\n"
    "If they do not, write ${GOLDEN} anew:\n  cmake -D ABIDW=${ABIDW} "
    "-D ABIDIFF=${ABIDIFF} -D LIBRARY=${LIBRARY} -D HEADERS=${HEADERS} -D GOLDEN=${GOLDEN} -D WRITE=1 "
    "-P ${CMAKE_CURRENT_LIST_FILE}")
endif()
