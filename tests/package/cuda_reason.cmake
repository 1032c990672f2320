# SPDX-License-Identifier: Apache-2.0
# cmake … -P cuda_reason.cmake: the reason for a CPU-only build is in CMake's last line and in rope_build_info

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")

# An nvcc that prints a release and compiles nothing.
function(write_nvcc name release)
  file(WRITE "${WORK}/${name}" "#!/bin/sh\necho 'Cuda compilation tools, release ${release}, V${release}.0'\nexit 1\n")
  file(CHMOD "${WORK}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
write_nvcc(nvcc_12.0 12.0)
write_nvcc(nvcc_12.1 12.1)

# configure(<name> <CUDACXX> <ROPE_CUDA> [<argument>...])
function(configure name nvcc cuda)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "CUDACXX=${nvcc}" "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/${name}"
            -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" -DROPE_BUILD_EXAMPLES=OFF
            -DROPE_CUDA=${cuda} ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}") # CMake wraps lines
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
  set(result "${result}" PARENT_SCOPE)
endfunction()

function(is_without_cuda name nvcc cuda reason)
  configure(${name} "${nvcc}" ${cuda} ${ARGN})
  string(REGEX MATCH "[^\n]*\n-- Configuring done" last_line "${output}")
  string(FIND "${last_line}" "CUDA: not built (${reason})" at)
  if(NOT result EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "${name}: CMake's last line does not say 'not built (${reason})':\n${output}${errors}")
  endif()
endfunction()

is_without_cuda(off "${WORK}/nvcc_12.1" OFF "ROPE_CUDA is OFF")
is_without_cuda(old "${WORK}/nvcc_12.0" AUTO "nvcc is of CUDA 12.0: librope needs 12.1 or later")
is_without_cuda(broken "${WORK}/nvcc_12.1" AUTO "nvcc compiles nothing: does it support the host compiler?")
is_without_cuda(missing "${WORK}/no_nvcc" AUTO "nvcc does not run, or is not NVIDIA's")
is_without_cuda(given "" AUTO "nvcc is of CUDA 12.0: librope needs 12.1 or later"
  "-DCMAKE_CUDA_COMPILER=${WORK}/nvcc_12.0")
configure(required "${WORK}/nvcc_12.0" ON)
string(FIND "${errors}" "ROPE_CUDA is ON, but nvcc is of CUDA 12.0: librope needs 12.1 or later" at)
if(result EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "ROPE_CUDA=ON must be refused with the reason:\n${output}${errors}")
endif()

# The library contains the reason too, compiled into the replacement of the CUDA backend and nowhere else.
set(object CMakeFiles/rope_objects.dir/src/backend/cuda/absent_cuda_backend.cpp.o)
set(target rope_objects)
if(GENERATOR STREQUAL "Ninja")
  set(target ${object})
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/old" --target ${target}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the backend does not build:\n${output}")
endif()
file(WRITE "${WORK}/print.c"
  "#include <rope/rope.h>\n#include <stdio.h>\nint main(void) { return puts(rope_build_info()) < 0; }\n")
execute_process(
  COMMAND "${CC}" -I "${SOURCE}/include" "${WORK}/print.c" "${WORK}/old/${object}" "${MOVED}/${LIBDIR}/librope.a"
          -lpthread -lm -o "${WORK}/print"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/print" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "CUDA: not built \\(nvcc is of CUDA 12\\.0: librope needs 12\\.1 or later\\)\n$")
  message(FATAL_ERROR "rope_build_info gives no reason: ${output}")
endif()
