# SPDX-License-Identifier: Apache-2.0
# cmake … -P uninstall.cmake: the target uninstall removes all that was installed, and nothing else.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")
file(WRITE "${WORK}/include/other.h" "")
file(WRITE "${WORK}/share/doc/rope/notes" "")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${WORK}/include/rope/rope.h")
  message(FATAL_ERROR "nothing was installed")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target uninstall
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE left LIST_DIRECTORIES false RELATIVE "${WORK}" "${WORK}/*")
list(SORT left)
if(NOT left STREQUAL "include/other.h;share/doc/rope/notes")
  message(SEND_ERROR "left after the target uninstall: ${left}")
endif()
foreach(folder IN ITEMS include/rope ${LIBDIR}/cmake/rope)
  if(EXISTS "${WORK}/${folder}")
    message(SEND_ERROR "the target uninstall left the folder ${folder}")
  endif()
endforeach()

# Without a manifest there is nothing to remove.
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target uninstall
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(result EQUAL 0 OR NOT output MATCHES "nothing was installed from this build")
  message(SEND_ERROR "a second uninstall must say that nothing was installed, and says: ${output}")
endif()
