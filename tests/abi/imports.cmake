# SPDX-License-Identifier: Apache-2.0
# cmake -D NM=… -D OBJECTS=…|… -P imports.cmake: checks the functions of the C library that the library's own objects
# call. Calls print nothing and allocate nothing: only texts are formatted, and only the function that creates a
# descriptor allocates. It also maps the memory of tasks, which more calls at the same time can increase. No function
# reads a number from a text (strtol, atoi, sscanf): compiled with a C library from 2.38 on, the library would need that
# version.

cmake_minimum_required(VERSION 3.22)

set(rules
  # file, or its beginning         functions that it may call, as regular expressions
  "src/|                            _?_?mem(cpy|set|move|cmp)(_chk)? __tls_get_addr _GLOBAL_OFFSET_TABLE_ __stack_chk.*"
  "src/|                            __aarch64_.*"
  "src/api/|                        pthread_setcancelstate"
  "src/api/descriptor.cpp|          calloc pthread_mutex_(un)?lock pthread_once pthread_atfork"
  "src/api/info_api.cpp|            pthread_once"
  "src/core/|                       ceil exp fabs floor fma fmax fmin log nearbyint pow sqrt"
  "src/core/problem/status.cpp|     vsnprintf __vsnprintf_chk newlocale uselocale"
  "src/plan/device_info.cpp|        str(ncmp|c?spn)"
  "src/backend/cpu/cpu_kernels|     erfc exp fma fmaf sqrt tanh"
  "src/backend/cpu/cpu_kernels.cpp| getenv strcmp"
  "src/backend/cpu/processors.cpp|  pthread_once sched_getaffinity __sched_cpucount sysconf"
  "src/backend/cpu/processors.cpp|  open(64)? (__)?read(_chk)? close str(chr|cmp|len|ncmp|str)"
  "src/backend/cpu/task_memory.cpp| mmap(64)? munmap sched_yield pthread_(atfork|once|self)"
  "src/backend/cpu/thread_pool.cpp| pthread_.* dl_iterate_phdr sig(fill|del)set"
  "src/backend/cuda/device_cache.cpp| getenv getpid"
  "src/backend/cuda/|               atexit cuda.* __cuda.* pthread_.*"
)

string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no objects")
endif()
foreach(object IN LISTS objects)
  string(REGEX REPLACE "^.*/rope_objects\\.dir/(\\./)?(src/.*)\\.o(bj)?$" "\\2" file "${object}")
  set(allowed "")
  foreach(rule IN LISTS rules)
    string(REGEX MATCH "^([^|]+)\\| *(.*)$" rule "${rule}")
    string(FIND "${file}" "${CMAKE_MATCH_1}" at)
    if(at EQUAL 0)
      string(REPLACE " " ";" words "${CMAKE_MATCH_2}")
      list(APPEND allowed ${words})
    endif()
  endforeach()
  list(JOIN allowed "|" allowed)
  execute_process(COMMAND "${NM}" --undefined-only --format=posix "${object}" OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE " .*" "" symbol "${line}")
    if(NOT symbol MATCHES "^(_ZT?[A-Z]*N?K?4rope.*|${allowed})$")
      message(SEND_ERROR "${file} calls ${symbol}: tests/abi/imports.cmake does not say that it may")
    endif()
  endforeach()
endforeach()
