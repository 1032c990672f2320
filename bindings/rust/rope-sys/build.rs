// SPDX-License-Identifier: Apache-2.0
//! Finds librope: in the folder ROPE_LIB_DIR if that is set, otherwise through pkg-config. With ROPE_STATIC=1 it links
//! librope.a; if that has CUDA, also libcudart_static.a, from CUDART_LIB_DIR if that is set.
//!
//! Build scripts of crates that depend on this one read the folder from DEP_ROPE_LIB_DIR. With DOCS_RS, which docs.rs
//! sets, no library is looked for, and nothing can be linked.

use std::env;
use std::path::Path;
use std::process::{exit, Command};

fn variable(name: &str) -> Option<String> {
    println!("cargo:rerun-if-env-changed={name}");
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn fail(reason: &str) -> ! {
    eprintln!("rope-sys: {reason}");
    eprintln!("rope-sys: install librope where pkg-config finds it, or set ROPE_LIB_DIR to the folder of librope.so");
    eprintln!("rope-sys: for documentation alone set DOCS_RS=1");
    exit(1);
}

fn pkg_config(arguments: &[&str]) -> String {
    let program = variable("PKG_CONFIG").unwrap_or_else(|| "pkg-config".to_string());
    match Command::new(&program).args(arguments).arg("rope").output() {
        Err(error) => fail(&format!("ROPE_LIB_DIR is not set and {program} does not start: {error}")),
        Ok(output) if !output.status.success() => {
            fail(&format!("{program} does not find librope: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_string(),
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if variable("DOCS_RS").is_some() {
        return; // the documentation needs no library
    }
    for name in ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let archive = variable("ROPE_STATIC").map_or(false, |value| value != "0");
    let name = if archive { "librope.a" } else { "librope.so" };

    let mut needed = vec!["m".to_string(), "pthread".to_string()]; // libraries that the archive needs
    let folder = match variable("ROPE_LIB_DIR") {
        Some(folder) => {
            if !Path::new(&folder).join(name).exists() {
                fail(&format!("ROPE_LIB_DIR is {folder}: there is no {name}"));
            }
            if variable("CUDART_LIB_DIR").is_some() {
                needed.extend(["cudart_static", "dl", "rt"].map(String::from));
            }
            folder
        }
        None => {
            pkg_config(&["--print-errors", "--atleast-version=0.1"]);
            let flags = pkg_config(&["--static", "--libs-only-l"]);
            needed = flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-l")).map(String::from).collect();
            needed.retain(|library| library != "rope");
            pkg_config(&["--variable=libdir"])
        }
    };

    println!("cargo:lib_dir={folder}");
    println!("cargo:rustc-link-search=native={folder}");
    if archive {
        println!("cargo:rustc-link-lib=static=rope");
        if let Some(cudart) = variable("CUDART_LIB_DIR") {
            println!("cargo:rustc-link-search=native={cudart}");
        }
        for library in needed {
            let kind = if library == "cudart_static" { "static" } else { "dylib" };
            println!("cargo:rustc-link-lib={kind}={library}");
        }
    } else {
        println!("cargo:rustc-link-lib=dylib=rope");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}"); // only for the tests of this crate
    }
}
