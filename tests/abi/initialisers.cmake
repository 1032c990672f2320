# SPDX-License-Identifier: Apache-2.0
# cmake -D COMPILER=… "-DFLAGS=… …" -D SOURCE=… -D PROGRAM=… -P initialisers.cmake: compiles the one file and runs it.

cmake_minimum_required(VERSION 3.22)

if(COMPILER MATCHES "NOTFOUND$")
  message("SKIPPED: there is no such compiler: ${COMPILER}")
  return()
endif()
separate_arguments(FLAGS UNIX_COMMAND "${FLAGS}")
execute_process(COMMAND "${COMPILER}" ${FLAGS} "${SOURCE}" -o "${PROGRAM}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PROGRAM}" COMMAND_ERROR_IS_FATAL ANY)
