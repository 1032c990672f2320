# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=… -P readme_table.cmake: the last column of the table in this folder's README.md names every test of
# tests/systems, with its file, and no other test.

cmake_minimum_required(VERSION 3.22)

file(READ "${SOURCE}/tests/systems/README.md" readme)
string(REPLACE ";" "@" readme "${readme}")
string(REGEX MATCHALL "\\| `[a-z_]+_tests[.]cpp`: [^|\n]+" cells "${readme}")
set(named)
foreach(cell IN LISTS cells)
  string(REGEX MATCH "`([a-z_]+_tests[.]cpp)`: (.+) $" unused "${cell}")
  set(file ${CMAKE_MATCH_1})
  string(REPLACE "@ " ";" tests "${CMAKE_MATCH_2}")
  foreach(test IN LISTS tests)
    list(APPEND named "${file}: ${test}")
  endforeach()
endforeach()

set(present)
file(GLOB files "${SOURCE}/tests/systems/*_tests.cpp")
foreach(path IN LISTS files)
  get_filename_component(file "${path}" NAME)
  file(STRINGS "${path}" lines REGEX "^TEST_CASE")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^TEST_CASE\\(\"([^\"]+)\"" unused "${line}")
    list(APPEND present "${file}: ${CMAKE_MATCH_1}")
  endforeach()
endforeach()

set(missing ${present})
list(REMOVE_ITEM missing ${named})
list(REMOVE_ITEM named ${present})
if(missing OR named OR NOT present)
  list(JOIN missing "\n  " missing)
  list(JOIN named "\n  " named)
  message(FATAL_ERROR
    "tests that tests/systems/README.md does not name:\n  ${missing}\nnames without a test:\n  ${named}")
endif()
