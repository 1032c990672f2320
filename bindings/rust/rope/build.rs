//! Lets this crate's tests and examples find librope.so where rope-sys found it. A program that depends on the crate
//! needs the same line in its own build script, or librope.so where the system's loader looks.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_ROPE_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
