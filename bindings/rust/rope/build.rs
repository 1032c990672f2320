// SPDX-License-Identifier: Apache-2.0
//! Lets this crate's tests and examples find the librope.so that rope-sys found. Passes its folder to the build scripts
//! of programs that depend on the crate, as DEP_ROPE_RS_LIB_DIR: an rpath that is set here does not reach them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_ROPE_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:lib_dir={folder}");
    }
}
