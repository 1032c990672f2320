# SPDX-License-Identifier: Apache-2.0
# cmake … -P doxygen.cmake: Doxygen reads rope.h without a warning; HTML and the man page of a function have its text.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${DOCS}/html" "${DOCS}/man")
execute_process(COMMAND "${DOXYGEN}" Doxyfile WORKING_DIRECTORY "${DOCS}" COMMAND_ERROR_IS_FATAL ANY)
foreach(file IN ITEMS html/index.html html/rope_8h.html man/man3/rope.h.3 man/man3/rope_config_t.3)
  if(NOT EXISTS "${DOCS}/${file}")
    message(SEND_ERROR "Doxygen made no ${file}")
  endif()
endforeach()
file(READ "${DOCS}/man/man3/rope_forward.3" link)
string(STRIP "${link}" link)
if(NOT link STREQUAL ".so man3/rope.h.3")
  message(SEND_ERROR "the man page of rope_forward does not refer to that of rope.h: ${link}")
endif()
file(READ "${DOCS}/man/man3/rope.h.3" page)
foreach(text IN ITEMS "rope_forward (const \\fBrope_desc_t\\fP" "ROPE_STATUS_NOT_SUPPORTED")
  string(FIND "${page}" "${text}" at)
  if(at EQUAL -1)
    message(SEND_ERROR "the man page of rope.h has no '${text}'")
  endif()
endforeach()
