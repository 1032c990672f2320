# SPDX-License-Identifier: Apache-2.0
# cmake -D NM=… -D OBJDUMP=… -D OBJECTS=…|… -P instruction_sets.cmake: checks that code compiled for newer processors is
# used only after their detection, and that RoPE fuses no operations.

cmake_minimum_required(VERSION 3.22)

string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no objects")
endif()
foreach(object IN LISTS objects)
  # If other objects have a function of the same name, the linker may take this one for all of them. Functions with the
  # instruction set in their names exist only in this object.
  string(REGEX REPLACE ".*cpu_kernels_(x86_v[0-9]).*" "\\1" set "${object}")
  execute_process(COMMAND "${NM}" --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [TWiu] [^\n]*" shared "${symbols}")
  list(FILTER shared EXCLUDE REGEX "B6${set}")
  foreach(symbol IN LISTS shared)
    message(SEND_ERROR "${object} has a function that others may get: ${symbol}")
  endforeach()

  execute_process(COMMAND "${OBJDUMP}" -d --no-show-raw-insn "${object}" OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[][;]" " " code "${code}")
  string(REGEX REPLACE "\n[0-9a-f]+ <" ";" functions "${code}")
  list(POP_FRONT functions)
  set(has_rotation FALSE)
  foreach(function IN LISTS functions)
    if(function MATCHES "^[^>]*(rotate|fill_angles)[^>]*>")
      set(has_rotation TRUE)
      if(function MATCHES "vfn?m(add|sub)[a-z0-9]*")
        set(instruction "${CMAKE_MATCH_0}")
        string(REGEX MATCH "^[^>]*" name "${function}")
        message(SEND_ERROR "${object} fuses a product and a sum in ${name}: ${instruction}")
      endif()
    endif()
  endforeach()
  if(NOT has_rotation)
    message(SEND_ERROR "${object} has no function that rotates")
  endif()
endforeach()
