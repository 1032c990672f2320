# SPDX-License-Identifier: Apache-2.0
# cmake … -P subdirectory.cmake: PROJECT, which has librope as a part, has no build type and treats warnings as errors.
# It must build and run its programs with either value of BUILD_SHARED_LIBS, and its installation must be usable. It
# sets -O1, with which the library compiles in a third of the time.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")
file(COPY "${PROJECT}/" DESTINATION "${WORK}")
configure_file("${PROGRAM}" "${WORK}/program.c" COPYONLY)
set(warnings "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror")
set(configure "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${CC}"
  "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_C_FLAGS=${warnings}" "-DROPE_SOURCE=${SOURCE}" -DROPE_CUDA=OFF
  -DROPE_HAS_X86_LEVELS=OFF -DROPE_INSTALL=ON -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
  set(output "${output}" PARENT_SCOPE)
endfunction()

# expect_level(<last -O of src/core> <summary> <argument>...): checks librope's own optimisation level, and the summary
function(expect_level level summary)
  run(${configure} ${ARGN})
  file(STRINGS "${WORK}/build/compile_commands.json" commands REGEX "\"command\".*src/core/problem/view\\.cpp")
  string(REGEX MATCHALL " -O[^ ]*" levels "${commands}")
  list(POP_BACK levels last)
  if(NOT "${last}" STREQUAL "${level}")
    message(SEND_ERROR "'${ARGN}' compiles with '${last}', not '${level}':\n${commands}")
  endif()
  string(FIND "${output}" ": ${summary}, CUDA: not built (ROPE_CUDA is OFF)" at)
  if(at EQUAL -1)
    message(SEND_ERROR "'${ARGN}' must say '${summary}':\n${output}")
  endif()
endfunction()

expect_level(" -O0" "shared and static, -O2 before other flags" "-DCMAKE_CXX_FLAGS=-O0")
expect_level(" -O3" "shared and static, Release" "-DCMAKE_CXX_FLAGS=" -DCMAKE_BUILD_TYPE=Release)
expect_level("" "shared and static, None" -DCMAKE_BUILD_TYPE=None)
expect_level(" -O2" "shared and static, -O2 before other flags" "-DCMAKE_CXX_FLAGS=${warnings}" -DCMAKE_BUILD_TYPE=)
expect_level(" -O1" "shared and static, -O2 before other flags" "-DCMAKE_CXX_FLAGS=${warnings} -O1")

# consume(<prefix> <script> <variable>=<value>...): runs a script of this folder on an installation
function(consume prefix script)
  list(TRANSFORM ARGN PREPEND -D)
  run("${CMAKE_COMMAND}" "-DWORK=${prefix}/work" "-DMOVED=${prefix}" -DLIBDIR=lib -DCUDA=OFF "-DGENERATOR=${GENERATOR}"
    "-DCC=${CC}" "-DCXX=${CXX}" ${ARGN} -P "${CMAKE_CURRENT_LIST_DIR}/${script}.cmake")
endfunction()

foreach(shared OFF ON)
  set(kind static)
  set(library librope.a)
  if(shared)
    set(kind shared)
    set(library librope.so)
  endif()
  run(${configure} -DBUILD_SHARED_LIBS=${shared})
  if(NOT output MATCHES "librope [0-9.]+(-dev)?: ${kind}, ")
    message(SEND_ERROR "BUILD_SHARED_LIBS ${shared} must say '${kind}':\n${output}")
  endif()
  file(REMOVE "${WORK}/build/program_rope" "${WORK}/build/program_static")
  run("${CMAKE_COMMAND}" --build "${WORK}/build")
  if(NOT shared AND EXISTS "${WORK}/build/_deps/rope-build/librope.so")
    message(SEND_ERROR "BUILD_SHARED_LIBS OFF builds librope.so")
  endif()
  foreach(program rope static)
    run("${WORK}/build/program_${program}")
  endforeach()

  set(prefix "${WORK}/${kind}")
  run("${CMAKE_COMMAND}" --install "${WORK}/build" --prefix "${prefix}")
  file(GLOB found RELATIVE "${prefix}/lib" "${prefix}/lib/librope.a" "${prefix}/lib/librope.so")
  if(NOT found STREQUAL library)
    message(SEND_ERROR "BUILD_SHARED_LIBS ${shared} installs '${found}', not ${library}")
  endif()
  # rope::rope and rope.pc are for programs that work with either library.
  consume("${prefix}" consumer "PROJECT=${CMAKE_CURRENT_LIST_DIR}/cmake" "ADDED=${PROGRAM}")
  if(PKG_CONFIG)
    consume("${prefix}" pkg_config "PKG_CONFIG=${PKG_CONFIG}" KIND=shared "PROGRAM=${PROGRAM}" "VERSION=${VERSION}"
      "README=${SOURCE}/pkgconfig/README.md")
  endif()
endforeach()
