# cmake -D SOURCE=… -P readme.cmake: the programs in README.md are the ones that tests compile and run.

cmake_minimum_required(VERSION 3.22)

file(READ "${SOURCE}/README.md" readme)
foreach(pair IN ITEMS
    c:tests/examples/readme_example.c
    cmake:tests/package/cmake/CMakeLists.txt
    cpp:tests/package/cxx/program.cpp
    rust:bindings/rust/rope/examples/decode_step.rs
    go:bindings/go/examples/decode_step/main.go)
  string(REPLACE ":" ";" pair "${pair}")
  list(GET pair 0 language)
  list(GET pair 1 file)
  file(READ "${SOURCE}/${file}" program)
  string(FIND "${readme}" "```${language}\n${program}```" at)
  if(at EQUAL -1)
    message(SEND_ERROR "README.md has no ${language} program that is ${file}")
  endif()
endforeach()
