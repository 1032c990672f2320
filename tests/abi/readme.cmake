# cmake -D SOURCE=… -P readme.cmake: the C program in README.md is the one that the build compiles and runs.

cmake_minimum_required(VERSION 3.24)

file(READ "${SOURCE}/README.md" readme)
file(READ "${SOURCE}/tests/examples/readme_example.c" example)
string(FIND "${readme}" "```c\n${example}```" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the C program in README.md differs from tests/examples/readme_example.c")
endif()
