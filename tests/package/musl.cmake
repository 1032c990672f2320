# SPDX-License-Identifier: Apache-2.0
# cmake … -P musl.cmake: builds librope.a for glibc with ROPE_HARDENING=OFF, links PROGRAM with it and with musl, and
# runs the calls of its threads with small stacks. The loops are the base set's alone, compiled with -O1, which takes a
# tenth of the time; that set needs as much stack as the others.

cmake_minimum_required(VERSION 3.22)

if(NOT MUSL_GCC)
  message("SKIPPED: there is no musl-gcc (Debian: musl-tools)")
  return()
endif()
file(REMOVE_RECURSE "${WORK}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}" -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${CC}"
          "-DCMAKE_CXX_COMPILER=${CXX}" -DROPE_CUDA=OFF -DROPE_HARDENING=OFF -DROPE_BUILD_EXAMPLES=OFF
          -DROPE_INSTALL=OFF -DROPE_HAS_X86_LEVELS=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}" --parallel 2 --target rope_static
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${MUSL_GCC}" -std=c99 -Wall -Wextra -Werror -static "-I${SOURCE}/include" "${PROGRAM}" "${WORK}/librope.a"
          -o "${WORK}/program"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/program" COMMAND_ERROR_IS_FATAL ANY)
