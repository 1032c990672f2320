# SPDX-License-Identifier: Apache-2.0
# cmake -D EMULATOR=… -D PROGRAM=… -D GOLDEN=… -P layout.cmake: the program's output equals the golden file.

cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${EMULATOR} "${PROGRAM}" OUTPUT_VARIABLE found RESULT_VARIABLE status)
file(READ "${GOLDEN}" expected)
if(NOT status EQUAL 0 OR NOT found STREQUAL expected)
  string(REPLACE ";" "," found "${found}")
  string(REPLACE "\n" ";" found "${found}")
  string(REPLACE "\n" ";" expected "${expected}")
  foreach(line IN LISTS expected)
    if(NOT line IN_LIST found)
      message("- ${line}")
    endif()
  endforeach()
  foreach(line IN LISTS found)
    if(NOT line IN_LIST expected)
      message("+ ${line}")
    endif()
  endforeach()
  message(FATAL_ERROR "the layout differs from ${GOLDEN}: '-' lines are an ABI break; add '+' lines to it if the change is meant")
endif()
