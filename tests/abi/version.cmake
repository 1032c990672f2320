# cmake -D SOURCE=… -D VERSION=… -D CLIENT=… -P version.cmake: the header, the build and the top entry of CHANGELOG.md
# agree, and rope_build_info, which CLIENT prints, says "-dev" behind the version until that entry has a date.

cmake_minimum_required(VERSION 3.22)

file(READ "${SOURCE}/include/rope/rope.h" header)
set(parts "")
foreach(part MAJOR MINOR PATCH)
  if(NOT header MATCHES "#define ROPE_VERSION_${part} ([0-9]+)\n")
    message(FATAL_ERROR "rope.h does not define ROPE_VERSION_${part}")
  endif()
  list(APPEND parts "${CMAKE_MATCH_1}")
endforeach()
list(JOIN parts "." header_version)

file(STRINGS "${SOURCE}/CHANGELOG.md" entries REGEX "^## ")
list(GET entries 0 entry)
if(NOT entry MATCHES "^## ([0-9]+\\.[0-9]+\\.[0-9]+) \\((unreleased|[0-9]+-[0-9]+-[0-9]+)\\)$")
  message(FATAL_ERROR "the top entry of CHANGELOG.md reads '${entry}', not '## X.Y.Z (date or unreleased)'")
endif()
if(NOT CMAKE_MATCH_1 STREQUAL header_version OR NOT VERSION STREQUAL header_version)
  message(FATAL_ERROR "rope.h says ${header_version}, CHANGELOG.md ${CMAKE_MATCH_1}, the build ${VERSION}")
endif()

set(text "librope ${header_version}")
if(entry MATCHES "unreleased")
  string(APPEND text "-dev")
endif()
execute_process(COMMAND ${EMULATOR} "${CLIENT}" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${output}" "run on: ${text}; CPU: " at)
if(at EQUAL -1)
  message(FATAL_ERROR "rope_build_info does not begin with '${text}; CPU: ':\n${output}")
endif()
