# SPDX-License-Identifier: Apache-2.0
# cmake … -P archive.cmake: a compiler can use the unpacked TGZ from any folder; with SOURCE_DATE_EPOCH, packing again
# gives the same bytes.

cmake_minimum_required(VERSION 3.22)

set(ENV{SOURCE_DATE_EPOCH} 1700000000)
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CPACK}" --config "${BUILD}/CPackConfig.cmake" -G TGZ -B "${WORK}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB archives "${WORK}/*.tar.gz")
list(LENGTH archives count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "not one archive but ${count}: ${archives}")
endif()
file(ARCHIVE_EXTRACT INPUT "${archives}" DESTINATION "${WORK}/unpacked")
file(GLOB root "${WORK}/unpacked/*")
execute_process(
  COMMAND "${CC}" -std=c99 "${PROGRAM}" "-I${root}/include" "-L${root}/${LIBDIR}" -lrope
          "-Wl,-rpath,${root}/${LIBDIR}" -o "${WORK}/program"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/program" COMMAND_ERROR_IS_FATAL ANY)

execute_process(COMMAND "${CPACK}" --config "${BUILD}/CPackConfig.cmake" -G TGZ -B "${WORK}/again"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB again "${WORK}/again/*.tar.gz")
file(SHA256 "${archives}" first)
file(SHA256 "${again}" second)
if(NOT first STREQUAL second)
  message(SEND_ERROR "${archives} and ${again} differ")
endif()
