# SPDX-License-Identifier: Apache-2.0
# cmake … -P parent.cmake: librope as a part of a project that compiles everything with FLAGS. Its library must pass the
# Catch2 tests TESTS that match FILTER, and the program DLOPEN; its archive must keep instruction sets apart.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/subdirectory/" DESTINATION "${WORK}")
configure_file("${PROGRAM}" "${WORK}/program.c" COPYONLY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}" -DCMAKE_BUILD_TYPE=Release
          "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_C_FLAGS_RELEASE=${FLAGS}"
          "-DCMAKE_CXX_FLAGS_RELEASE=${FLAGS}" -DROPE_CUDA=OFF "-DROPE_SOURCE=${SOURCE}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" --parallel 2 COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/build/program_rope" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/build/program_static" COMMAND_ERROR_IS_FATAL ANY)

# Preloaded, it replaces the librope.so.0 of the tests' program.
set(library "${WORK}/build/_deps/rope-build/librope.so.0")
execute_process(COMMAND "${DLOPEN}" "${library}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "LD_PRELOAD=${library}" "${TESTS}" "${FILTER}"
  COMMAND_ERROR_IS_FATAL ANY)

if(NM)
  file(MAKE_DIRECTORY "${WORK}/archive")
  execute_process(COMMAND "${AR}" x "${WORK}/build/_deps/rope-build/librope.a" WORKING_DIRECTORY "${WORK}/archive"
    COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB objects "${WORK}/archive/cpu_kernels_x86*")
  list(JOIN objects "|" objects)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -D "NM=${NM}" -D "OBJDUMP=${OBJDUMP}" -D "OBJECTS=${objects}"
            -P "${SOURCE}/tests/abi/instruction_sets.cmake"
    COMMAND_ERROR_IS_FATAL ANY)
endif()
