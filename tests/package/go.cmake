# cmake … -P go.cmake: the package's tests and example against the moved tree, which pkg-config finds.

cmake_minimum_required(VERSION 3.24)

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
set(ENV{GOCACHE} "${WORK}/cache")
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
