# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=… -P readme.cmake: the programs in the READMEs equal those that tests compile and run, without the line
# that names their licence.

cmake_minimum_required(VERSION 3.22)

foreach(entry IN ITEMS
    README.md:c:tests/examples/readme_example.c
    pkgconfig/README.md:cmake:tests/package/cmake/CMakeLists.txt
    pkgconfig/README.md:cpp:tests/package/cxx/program.cpp
    bindings/rust/rope/README.md:rust:bindings/rust/rope/examples/decode_step.rs
    bindings/go/README.md:go:bindings/go/examples/decode_step/main.go)
  string(REPLACE ":" ";" entry "${entry}")
  list(GET entry 0 page)
  list(GET entry 1 language)
  list(GET entry 2 file)
  file(READ "${SOURCE}/${page}" readme)
  file(READ "${SOURCE}/${file}" program)
  string(REGEX REPLACE "^[^\n]*SPDX-License-Identifier[^\n]*\n\n?" "" program "${program}")
  string(FIND "${readme}" "```${language}\n${program}```" at)
  if(at EQUAL -1)
    message(SEND_ERROR "${page} has no ${language} program that is ${file}")
  endif()
endforeach()
