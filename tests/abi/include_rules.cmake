# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=…/src -P include_rules.cmake: checks that includes follow the flow of data, api -> core -> plan ->
# backend -> kernels, and never go back.
#
# A file's rule is the first line below with a folder that contains the file; a file without a rule is an error. Quoted
# includes are relative to src/. Only the files that src/backend/cuda/kernel_files.cmake makes include a file of kernels.

cmake_minimum_required(VERSION 3.22)

set(rules
  #  folder or file          may include, beside the C library
  "api/|                     rope/rope.h api/ core/ plan/ backend/backend.hpp"
  "core/math/|               core/math/"
  "core/problem/|            rope/rope.h core/math/ core/problem/"
  "core/recipes/|            rope/rope.h core/math/ core/problem/status.hpp core/problem/descriptor_checks.hpp core/recipes/"
  "plan/|                    core/ plan/"
  "backend/backend.hpp|      core/ plan/"
  "backend/cpu/|             core/ plan/ backend/backend.hpp backend/cpu/"
  "backend/cuda/kernels/|    core/ plan/tuning.hpp plan/rope_kernels.hpp plan/step_kernels.hpp plan/swiglu_kernels.hpp backend/cuda/kernels/ CUDA"
  "backend/cuda/|            core/ plan/ backend/backend.hpp backend/cuda/ CUDA"
)
# Headers of the C library and the compiler, and header-only parts of C++: the installed library links no C++ runtime.
set(c_library "^((sys|linux)/)?[a-z0-9_]+\\.h$|^(atomic|limits|new|type_traits|utility)$")
set(cuda "^(cuda|cuda_[a-z0-9_]+|cooperative_groups|vector_types|driver_types|device_types|nvtx3?/.*)(\\.h)?$")

file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/*.c" "${SOURCE}/*.h" "${SOURCE}/*.cpp" "${SOURCE}/*.hpp"
     "${SOURCE}/*.cu" "${SOURCE}/*.cuh")
if(NOT files)
  message(FATAL_ERROR "no sources in ${SOURCE}")
endif()

foreach(file IN LISTS files)
  set(folder "")
  foreach(rule IN LISTS rules)
    if(rule MATCHES "^([^|]+)\\| *(.*)$")
      set(rule_folder "${CMAKE_MATCH_1}")
      string(REPLACE " " ";" allowed "${CMAKE_MATCH_2}")
      string(FIND "${file}" "${rule_folder}" at)
      if(at EQUAL 0)
        set(folder "${rule_folder}")
        break()
      endif()
    endif()
  endforeach()
  if(folder STREQUAL "")
    message(SEND_ERROR "src/${file}: no rule for this folder in tests/abi/include_rules.cmake")
    continue()
  endif()

  file(STRINGS "${SOURCE}/${file}" lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    if(line MATCHES "#[ \t]*include[ \t]*([<\"])([^>\"]+)")
      set(bracket "${CMAKE_MATCH_1}")
      set(included "${CMAKE_MATCH_2}")
      set(is_allowed FALSE)
      if(included MATCHES "${cuda}")
        if("CUDA" IN_LIST allowed)
          set(is_allowed TRUE)
        endif()
      elseif(bracket STREQUAL "<" AND included MATCHES "${c_library}")
        set(is_allowed TRUE)
      else()
        foreach(prefix IN LISTS allowed)
          string(FIND "${included}" "${prefix}" at)
          if(at EQUAL 0)
            set(is_allowed TRUE)
          endif()
        endforeach()
        if(bracket STREQUAL "\"" AND NOT EXISTS "${SOURCE}/${included}")
          set(is_allowed FALSE)
        endif()
      endif()
      if(NOT is_allowed)
        message(SEND_ERROR "src/${file} includes ${included}: ${folder} may include ${allowed} and the C library")
      elseif(included MATCHES "\\.cuh$")
        file(READ "${SOURCE}/${included}" text)
        if(text MATCHES "__global__")
          message(SEND_ERROR "src/${file} includes ${included}: files that CMake makes include kernels, no others")
        endif()
      endif()
    endif()
  endforeach()

  file(READ "${SOURCE}/${file}" text)
  if(NOT folder STREQUAL "api/" AND text MATCHES "extern \"C\"")
    message(SEND_ERROR "src/${file}: extern \"C\" stands only in src/api")
  endif()
  if(NOT folder MATCHES "^backend/cuda/" AND text MATCHES "[^A-Za-z0-9_](cuda[A-Z][A-Za-z0-9]*|cu[A-Z][a-z][A-Za-z0-9]*)\\(")
    message(SEND_ERROR "src/${file} calls ${CMAKE_MATCH_1}: CUDA is called only in src/backend/cuda")
  endif()
  if(file MATCHES "\\.cuh?$" AND text MATCHES "\n(namespace \\{|static )")
    message(SEND_ERROR "src/${file} has names of its own: nvcc puts a hash of the file's path in them")
  endif()
  if(NOT folder MATCHES "^(api|core)/" AND text MATCHES "(rope|swiglu)_(config|args|tensor)_t")
    message(SEND_ERROR "src/${file} names ${CMAKE_MATCH_0}: the public structs end in src/core")
  endif()
endforeach()
