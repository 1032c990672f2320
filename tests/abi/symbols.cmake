# SPDX-License-Identifier: Apache-2.0
# cmake -D NM=… -D LIBRARY=… -D GOLDEN=… -P symbols.cmake: the library exports the functions that the file GOLDEN lists,
# one a line, in version node ROPE_0, and nothing else.

cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" lines "${output}")
set(found "")
foreach(line IN LISTS lines)
  if(line MATCHES "^[0-9a-f]+ A ROPE_[0-9]+(@@ROPE_[0-9]+)?$")
    continue() # the absolute symbol of the version node itself
  elseif(line MATCHES "^[0-9a-f]+ T ([A-Za-z0-9_]+)@@ROPE_0$")
    list(APPEND found "${CMAKE_MATCH_1}")
  elseif(NOT line STREQUAL "")
    message(SEND_ERROR "not a function of version node ROPE_0: ${line}")
  endif()
endforeach()

file(STRINGS "${GOLDEN}" expected)
foreach(symbol IN LISTS expected)
  if(NOT symbol IN_LIST found)
    message(SEND_ERROR "missing: ${symbol}")
  endif()
endforeach()
foreach(symbol IN LISTS found)
  if(NOT symbol IN_LIST expected)
    message(SEND_ERROR "not in ${GOLDEN}: ${symbol}")
  endif()
endforeach()
