# SPDX-License-Identifier: Apache-2.0
# cmake … -P install.cmake: installs, moves the tree, and checks every file of it.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}" "${MOVED}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${WORK}" "${MOVED}")

string(REGEX REPLACE "^([0-9]+).*" "\\1" major "${VERSION}")
set(expected
  include/rope/rope.h
  ${LIBDIR}/cmake/rope/ropeConfig.cmake
  ${LIBDIR}/cmake/rope/ropeConfigVersion.cmake
  ${LIBDIR}/cmake/rope/ropeSharedTargets.cmake
  ${LIBDIR}/cmake/rope/ropeStaticTargets.cmake
  ${LIBDIR}/librope.a
  ${LIBDIR}/librope.so
  ${LIBDIR}/librope.so.0
  ${LIBDIR}/librope.so.${VERSION}
  ${LIBDIR}/pkgconfig/rope.pc
  share/doc/rope/CHANGELOG.md
  share/doc/rope/LICENSE)
file(GLOB_RECURSE found LIST_DIRECTORIES false RELATIVE "${MOVED}" "${MOVED}/*")
list(FILTER found EXCLUDE REGEX "cmake/rope/rope(Shared|Static)Targets-[a-z]+\\.cmake$") # one for each build type
if(DOCS)
  foreach(file IN ITEMS share/doc/rope/html/index.html share/doc/rope/html/rope_8h.html share/man/man3/rope.h.3
                        share/man/man3/rope_forward.3 share/man/man3/swiglu_config_t.3)
    if(NOT file IN_LIST found)
      message(SEND_ERROR "${file} is not installed, though ROPE_BUILD_DOCS is ON")
    endif()
  endforeach()
  list(FILTER found EXCLUDE REGEX "^share/(doc/rope/html/|man/man3/(rope|ROPE_|swiglu|SWIGLU_)[A-Za-z0-9_.]*\\.3$)")
endif()
list(SORT found)
list(SORT expected)
if(NOT found STREQUAL expected)
  message(SEND_ERROR "installed:\n  ${found}\nexpected:\n  ${expected}")
endif()

# Debug information contains source paths; a distribution strips it or maps the paths.
file(GLOB_RECURSE files LIST_DIRECTORIES false "${MOVED}/*")
foreach(file IN LISTS files)
  if(BUILD_TYPE MATCHES "Deb" AND file MATCHES "librope\\.(a|so[.0-9]*)$")
    continue()
  endif()
  foreach(folder IN ITEMS "${SOURCE}" "${BUILD}" "${WORK}")
    string(REGEX REPLACE "([][+.*()^$?|\\\\])" "\\\\\\1" pattern "${folder}")
    # Matches must not be parts of other paths: a checkout in /librope does not occur in lib/librope.so.
    file(STRINGS "${file}" lines REGEX "(^|-(I|L|B|F|isystem|iquote)|[^A-Za-z0-9_.}-])${pattern}")
    if(lines)
      message(SEND_ERROR "${file} names ${folder}: ${lines}")
    endif()
  endforeach()
endforeach()

execute_process(COMMAND "${READELF}" -dW "${MOVED}/${LIBDIR}/librope.so" OUTPUT_VARIABLE dynamic
  COMMAND_ERROR_IS_FATAL ANY)
if(dynamic MATCHES "R(UN)?PATH[^\n]*")
  message(SEND_ERROR "the installed library has a search path: ${CMAKE_MATCH_0}")
endif()
