# SPDX-License-Identifier: Apache-2.0
# cmake … -P program.cmake: extracts the program in LANGUAGE and the commands that follow it from README, a file in
# SOURCE, and runs them as a reader would who pastes both, where BUILD is the folder `build`. The output must match
# EXPECTED.

cmake_minimum_required(VERSION 3.22)

# Sets `block` to the contents of the first fence of this language, and `rest` to the text after it.
function(take language text)
  string(FIND "${text}" "```${language}\n" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${README} has no ```${language}")
  endif()
  string(SUBSTRING "${text}" ${at} -1 text)
  string(FIND "${text}" "\n" at)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${text}" ${at} -1 text)
  string(FIND "${text}" "```" at)
  string(SUBSTRING "${text}" 0 ${at} block)
  math(EXPR at "${at} + 3")
  string(SUBSTRING "${text}" ${at} -1 rest)
  set(block "${block}" PARENT_SCOPE)
  set(rest "${rest}" PARENT_SCOPE)
endfunction()

if(NEEDED MATCHES "NOTFOUND$")
  message("SKIPPED: there is no program for this: ${NEEDED}")
  return()
endif()
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
foreach(folder include bindings)
  file(CREATE_LINK "${SOURCE}/${folder}" "${WORK}/${folder}" SYMBOLIC)
endforeach()
file(CREATE_LINK "${BUILD}" "${WORK}/build" SYMBOLIC)

file(READ "${SOURCE}/${README}" readme)
take(${LANGUAGE} "${readme}")
set(suffixes "c;c;python;py;rust;rs;go;go")
list(FIND suffixes ${LANGUAGE} at)
math(EXPR at "${at} + 1")
list(GET suffixes ${at} suffix)
file(WRITE "${WORK}/program.${suffix}" "${block}")
take(sh "${rest}")
# Nothing is downloaded, and nothing remains in the sources.
set(ENV{CARGO_NET_OFFLINE} true)
set(ENV{CARGO_TARGET_DIR} "${WORK}/target")
set(ENV{PYTHONDONTWRITEBYTECODE} 1)
set(ENV{GOPROXY} off)
set(ENV{GOCACHE} "${WORK}/cache")
set(ENV{GOPATH} "${WORK}/path")
set(ENV{PATH} "${TOOLS}:$ENV{PATH}")
execute_process(COMMAND sh -e -c "${block}" WORKING_DIRECTORY "${WORK}"
  OUTPUT_VARIABLE output ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "the output must match '${EXPECTED}'")
endif()
