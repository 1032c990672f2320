# SPDX-License-Identifier: Apache-2.0
# cmake … -P rust.cmake: runs the crates' tests and example with the moved tree, found in each way that build.rs
# supports; builds their documentation without it; and runs a separate package with the commands of their README.md.

cmake_minimum_required(VERSION 3.22)

if(NOT CARGO)
  message("SKIPPED: there is no cargo")
  return()
endif()
set(ENV{CARGO_TARGET_DIR} "${WORK}")
set(decode_step "position   1000: the first pair is \\( 0.562379,  0.826880\\)")
set(ENV{CARGO_TERM_COLOR} never)
set(ENV{RUSTFLAGS} "-D warnings")

function(cargo)
  execute_process(COMMAND "${CARGO}" ${ARGN} --offline --locked --quiet WORKING_DIRECTORY "${SOURCE}/bindings/rust"
    OUTPUT_VARIABLE output ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(ENV{ROPE_LIB_DIR} "${MOVED}/${LIBDIR}")
cargo(test --workspace)
set(ENV{RUSTDOCFLAGS} "-D warnings")
cargo(doc --no-deps --workspace)
cargo(run --example decode_step)
if(NOT output MATCHES "${decode_step}")
  message(SEND_ERROR "examples/decode_step.rs printed:\n${output}")
endif()
set(ENV{ROPE_STATIC} 1)
if(CUDA)
  set(ENV{CUDART_LIB_DIR} "${CUDA_LIBDIR}")
endif()
cargo(run --example decode_step)
unset(ENV{ROPE_STATIC})
unset(ENV{ROPE_LIB_DIR})
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG} "${PKG_CONFIG}")
  set(ENV{PKG_CONFIG_PATH} "${MOVED}/${LIBDIR}/pkgconfig")
  cargo(run --example decode_step)
endif()

# Documentation is built without the library. Its output must not be reused once there is a library.
set(ENV{CARGO_TARGET_DIR} "${WORK}/documentation")
set(ENV{DOCS_RS} 1)
set(ENV{PKG_CONFIG} there-is-no-pkg-config)
cargo(doc --no-deps --workspace)
unset(ENV{DOCS_RS})
set(ENV{ROPE_LIB_DIR} "${MOVED}/${LIBDIR}")
cargo(run --example decode_step)

# A package outside the workspace that depends only on the crate rope; `librope` is the checkout.
set(ENV{CARGO_TARGET_DIR} "${WORK}/program/target")
file(READ "${SOURCE}/bindings/rust/rope/README.md" readme)
string(REGEX MATCH "librope = { path = \"librope/[^}]*}" dependency "${readme}")
string(REGEX MATCH "fn main\\(\\) {\n    if let Ok[^`]*" build "${readme}")
file(REMOVE_RECURSE "${WORK}/program")
file(WRITE "${WORK}/program/Cargo.toml"
  "[package]\nname = \"program\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[dependencies]\n${dependency}\n")
file(WRITE "${WORK}/program/build.rs" "${build}")
file(CREATE_LINK "${SOURCE}" "${WORK}/program/librope" SYMBOLIC)
configure_file("${SOURCE}/bindings/rust/rope/examples/decode_step.rs" "${WORK}/program/src/main.rs" COPYONLY)
unset(ENV{LD_LIBRARY_PATH})
execute_process(COMMAND "${CARGO}" build --offline --quiet WORKING_DIRECTORY "${WORK}/program"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/program/target/debug/program" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "${decode_step}")
  message(SEND_ERROR "the program printed:\n${output}")
endif()
