# cmake … -P parent.cmake: librope as a part of a project that compiles everything with FLAGS. Its library must pass TESTS,
# Catch2's, of which FILTER are run, and load as DLOPEN wants it.

cmake_minimum_required(VERSION 3.24)

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

# Loaded first, it is the librope.so.0 that the tests' program asks for.
set(library "${WORK}/build/_deps/rope-build/librope.so.0")
execute_process(COMMAND "${DLOPEN}" "${library}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "LD_PRELOAD=${library}" "${TESTS}" "${FILTER}"
  COMMAND_ERROR_IS_FATAL ANY)
