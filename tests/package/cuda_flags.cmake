# SPDX-License-Identifier: Apache-2.0
# cmake … -P cuda_flags.cmake: as a part of a project with CMAKE_CUDA_FLAGS that trade accuracy for speed, librope
# compiles its kernels to the same PTX as without them. The only approximations that flush to zero are those in
# swiglu.cuh.

cmake_minimum_required(VERSION 3.22)

set(flags "--use_fast_math --fmad=false")
file(REMOVE_RECURSE "${WORK}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/subdirectory/" DESTINATION "${WORK}")
configure_file("${PROGRAM}" "${WORK}/program.c" COPYONLY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}" -DCMAKE_BUILD_TYPE=Release
          "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CUDA_COMPILER=${NVCC}"
          "-DCMAKE_CUDA_FLAGS=${flags}" -DCMAKE_CUDA_ARCHITECTURES=90-virtual -DROPE_CUDA=ON "-DROPE_SOURCE=${SOURCE}"
          -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  COMMAND_ERROR_IS_FATAL ANY)

# compile_to_ptx(<variable> <command>)
function(compile_to_ptx variable command)
  string(REGEX REPLACE " -c ([^ ]+) -o [^ ]+" " --ptx \\1 -o '${WORK}/${variable}'" command "${command}")
  execute_process(COMMAND sh -c "${command}" COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS "${WORK}/${variable}" lines REGEX "^[^/]")
  list(JOIN lines "\n" ptx)
  set(${variable} "${ptx}" PARENT_SCOPE)
endfunction()

file(READ "${WORK}/build/compile_commands.json" entries)
foreach(file IN ITEMS swiglu_f32.cu rope_scalar_f32.cu)
  string(REGEX MATCH "\"command\": \"([^\n]*/${file} -o [^\n]*)\"" entry "${entries}")
  string(REPLACE "\\" "" command "${CMAKE_MATCH_1}")
  string(FIND "${command}" " ${flags} " at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${file} is not compiled with ${flags}: ${command}")
  endif()
  compile_to_ptx(parent.ptx "${command}")
  string(REPLACE " ${flags} " " " command "${command}")
  compile_to_ptx(own.ptx "${command}")
  if(NOT parent.ptx STREQUAL own.ptx)
    message(SEND_ERROR "${file}: '${flags}' in CMAKE_CUDA_FLAGS changes its PTX")
  endif()
  string(REGEX MATCHALL "[a-z0-9.]+[.](approx|full|ftz)[a-z0-9.]*" inexact "${parent.ptx}")
  list(REMOVE_DUPLICATES inexact)
  list(REMOVE_ITEM inexact ex2.approx.ftz.f32 rcp.approx.ftz.f32)
  if(inexact)
    message(SEND_ERROR "${file} has instructions that flush to zero or approximate: ${inexact}")
  endif()
endforeach()
