# SPDX-License-Identifier: Apache-2.0
# cmake … -P go.cmake: runs the package's tests and example with the moved tree, found by pkg-config, and a separate
# module with the commands of the package's README.md.

cmake_minimum_required(VERSION 3.22)

if(NOT GO)
  message("SKIPPED: there is no go")
  return()
endif()
if(NOT PKG_CONFIG)
  message("SKIPPED: there is no pkg-config, which cgo asks for the flags")
  return()
endif()
set(ENV{PKG_CONFIG} "${PKG_CONFIG}")
set(ENV{PKG_CONFIG_PATH} "${MOVED}/${LIBDIR}/pkgconfig")
set(ENV{LD_LIBRARY_PATH} "${MOVED}/${LIBDIR}:$ENV{LD_LIBRARY_PATH}")
set(ENV{GOCACHE} "${WORK}/cache/${LIBDIR}") # it remembers what pkg-config said
set(ENV{GOPATH} "${WORK}/path")
set(ENV{GOFLAGS} -mod=mod)
set(ENV{GOPROXY} off)
set(ENV{CC} "${CC}")
set(ENV{CGO_ENABLED} 1)

function(go)
  execute_process(COMMAND "${GO}" ${ARGN} WORKING_DIRECTORY "${SOURCE}/bindings/go"
    OUTPUT_VARIABLE output ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
  set(output "${output}" PARENT_SCOPE)
endfunction()

go(vet ./...)
# A cached "ok" would hide that the library is missing.
go(test -count=1 ./...)
go(run ./examples/decode_step)
if(NOT output MATCHES "position   1000: the first pair is \\( 0.562379,  0.826880\\)")
  message(SEND_ERROR "examples/decode_step printed:\n${output}")
endif()

# A module outside this one; `librope` is the checkout.
file(READ "${SOURCE}/bindings/go/README.md" readme)
string(REGEX MATCH "require [^\n]*/bindings/go [^\n]*\nreplace [^\n]* => [^\n]*\n" requirement "${readme}")
string(REGEX MATCH "CGO_LDFLAGS=[^`]*go build" command "${readme}")
file(REMOVE_RECURSE "${WORK}/program")
file(WRITE "${WORK}/program/go.mod" "module example.com/program\n\ngo 1.19\n\n${requirement}")
file(CREATE_LINK "${SOURCE}" "${WORK}/program/librope" SYMBOLIC)
configure_file("${SOURCE}/bindings/go/examples/decode_step/main.go" "${WORK}/program/main.go" COPYONLY)
unset(ENV{LD_LIBRARY_PATH})
unset(ENV{GOFLAGS})
cmake_path(GET GO PARENT_PATH go_folder)
set(ENV{PATH} "${go_folder}:$ENV{PATH}")
string(REPLACE "pkg-config" "'${PKG_CONFIG}'" command "${command}")
execute_process(COMMAND sh -c "${command}" WORKING_DIRECTORY "${WORK}/program" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/program/program" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "position   1000: the first pair is \\( 0.562379,  0.826880\\)")
  message(SEND_ERROR "the program printed:\n${output}")
endif()
