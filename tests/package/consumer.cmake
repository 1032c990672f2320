# SPDX-License-Identifier: Apache-2.0
# cmake … -P consumer.cmake: configures and builds PROJECT, with the file ADDED as program.c, using the moved tree, and
# runs the resulting programs named program*.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")
file(COPY "${PROJECT}/" DESTINATION "${WORK}")
if(ADDED)
  configure_file("${ADDED}" "${WORK}/program.c" COPYONLY)
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}" -DCMAKE_BUILD_TYPE=Release
          "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_PREFIX_PATH=${MOVED}"
          "-DCUDAToolkit_ROOT=${CUDA_ROOT}" --no-warn-unused-cli
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB programs "${WORK}/build/program*")
if(NOT programs)
  message(FATAL_ERROR "${PROJECT} made no program")
endif()
foreach(program IN LISTS programs)
  execute_process(COMMAND "${program}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
