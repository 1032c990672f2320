# SPDX-License-Identifier: Apache-2.0
# cmake … -P recipes.cmake: recipes of conda, Spack and vcpkg name only options that CMakeLists.txt has and leave version
# and checksums to .ci/release; they and the other packages name one homepage; the manifest is JSON, and package.py
# Python.

cmake_minimum_required(VERSION 3.22)

file(READ "${SOURCE}/CMakeLists.txt" options)
foreach(file IN ITEMS conda/recipe.yaml spack/package.py vcpkg/portfile.cmake vcpkg/vcpkg.json)
  file(READ "${SOURCE}/pkgconfig/${file}" recipe)
  string(REGEX MATCHALL "ROPE_[A-Z_]+" names "${recipe}")
  foreach(name IN LISTS names)
    if(NOT options MATCHES "(option|set)\\(${name} ")
      message(SEND_ERROR "pkgconfig/${file} sets ${name}, which CMakeLists.txt does not have")
    endif()
  endforeach()
  string(REGEX MATCHALL "@[A-Z0-9]+@" filled "${recipe}")
  list(REMOVE_DUPLICATES filled)
  foreach(name IN LISTS filled)
    if(NOT name MATCHES "^@(VERSION|SHA256|SHA512)@$")
      message(SEND_ERROR "pkgconfig/${file} has ${name}, which .ci/release does not fill in")
    endif()
  endforeach()
  if(NOT filled)
    message(SEND_ERROR "pkgconfig/${file} has nothing that .ci/release fills in")
  endif()
endforeach()

file(READ "${SOURCE}/pkgconfig/vcpkg/vcpkg.json" manifest)
string(JSON name GET "${manifest}" name)
string(JSON license GET "${manifest}" license)
if(NOT name STREQUAL "librope" OR NOT license STREQUAL "Apache-2.0")
  message(SEND_ERROR "vcpkg.json names ${name} with the license ${license}")
endif()

foreach(file IN ITEMS pkgconfig/conda/recipe.yaml pkgconfig/spack/package.py pkgconfig/vcpkg/vcpkg.json
                      pkgconfig/vcpkg/portfile.cmake bindings/rust/rope/Cargo.toml bindings/rust/rope-sys/Cargo.toml)
  file(READ "${SOURCE}/${file}" text)
  string(FIND "${text}" "\"${HOMEPAGE}" quoted)
  string(FIND "${text}" " ${HOMEPAGE}" unquoted)
  if(quoted EQUAL -1 AND unquoted EQUAL -1)
    message(SEND_ERROR "${file} does not name ${HOMEPAGE}")
  endif()
endforeach()

if(PYTHON3)
  execute_process(
    COMMAND "${PYTHON3}" -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" "${SOURCE}/pkgconfig/spack/package.py"
    COMMAND_ERROR_IS_FATAL ANY)
endif()
