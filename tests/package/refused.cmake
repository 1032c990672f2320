# SPDX-License-Identifier: Apache-2.0
# cmake … -P refused.cmake: requests that find_package must refuse, with the reason that it must give.

cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE "${WORK}")
file(COPY "${MOVED}/" DESTINATION "${WORK}/without_archive")
file(REMOVE "${WORK}/without_archive/${LIBDIR}/cmake/rope/ropeStaticTargets.cmake")
file(COPY "${MOVED}/${LIBDIR}/cmake" DESTINATION "${WORK}/neither/${LIBDIR}")
file(REMOVE "${WORK}/neither/${LIBDIR}/cmake/rope/ropeSharedTargets.cmake"
  "${WORK}/neither/${LIBDIR}/cmake/rope/ropeStaticTargets.cmake")
string(REGEX REPLACE "^([0-9]+)\\..*" "\\1" major "${VERSION}")
math(EXPR next_major "${major} + 1")

function(find name prefix arguments)
  file(WRITE "${WORK}/${name}/CMakeLists.txt"
    "cmake_minimum_required(VERSION 3.16)\nproject(${name} LANGUAGES NONE)\n"
    "find_package(rope ${arguments})\nmessage(\"found \${rope_FOUND}, cuda \${rope_cuda_FOUND}\")\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${WORK}/${name}" -B "${WORK}/${name}/build" -G "${GENERATOR}"
            "-Drope_DIR=${prefix}/${LIBDIR}/cmake/rope"
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps lines
  set(output "${output}" PARENT_SCOPE)
  set(result "${result}" PARENT_SCOPE)
endfunction()

function(refuse name prefix arguments reason)
  find(${name} "${prefix}" "${arguments}")
  string(FIND "${output}" "${reason}" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "find_package(rope ${arguments}) must be refused because '${reason}':\n${output}")
  endif()
endfunction()

function(accept name prefix arguments)
  find(${name} "${prefix}" "${arguments}")
  if(NOT result EQUAL 0 OR NOT output MATCHES "found (1|TRUE)")
    message(SEND_ERROR "find_package(rope ${arguments}) must be served:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

accept(this_version "${MOVED}" "${VERSION} EXACT CONFIG REQUIRED")
accept(first_version "${MOVED}" "${major}.0 CONFIG REQUIRED")
refuse(next_major "${MOVED}" "${next_major}.0 CONFIG REQUIRED" "compatible with requested version \"${next_major}.0\"")
refuse(later_version "${MOVED}" "${major}.999 CONFIG REQUIRED" "version: ${VERSION}")
refuse(no_such_component "${MOVED}" "CONFIG REQUIRED COMPONENTS fortran"
  "component fortran: there is no such component; there are shared, static, cpu and cuda")
refuse(no_archive "${WORK}/without_archive" "CONFIG REQUIRED COMPONENTS static"
  "component static: this installation has no static library")
refuse(neither "${WORK}/neither" "CONFIG REQUIRED COMPONENTS cpu"
  "this installation has no shared library; this installation has no static library")
accept(no_archive_shared "${WORK}/without_archive" "CONFIG REQUIRED COMPONENTS shared cpu")
accept(cuda_optional "${MOVED}" "CONFIG REQUIRED COMPONENTS shared OPTIONAL_COMPONENTS cuda")
if(CUDA)
  accept(cuda "${MOVED}" "CONFIG REQUIRED COMPONENTS cuda")
else()
  if(NOT output MATCHES "cuda FALSE")
    message(SEND_ERROR "rope_cuda_FOUND of a build without CUDA:\n${output}")
  endif()
  refuse(no_cuda "${MOVED}" "CONFIG REQUIRED COMPONENTS cuda" "component cuda: this librope was built for the CPU only")
endif()
