# SPDX-License-Identifier: Apache-2.0
# kernel_files.cmake - makes the files that nvcc compiles, in the build folder, so that an edit of one kernel compiles
# little, and many processors are busy. Results are in rope_kernel_sources.

# Files in src/backend/cuda/kernels, and the types of data that they have kernels for. Each row and type is a file; a
# row of several kernels saves their headers, 3 s for all architectures. The slowest rows come first.
set(rope_kernel_files
  "step_rows                                                                            | BF16 F16 F32"
  "step_codes                                                                           | BF16 F16"
  "swiglu_matrix                                                                        | BF16 F16 F32"
  "step_short_more                                                                      | BF16 F16 F32"
  "swiglu_code_blocks swiglu_code_groups swiglu_code_matrix swiglu_expert_codes         | BF16 F16"
  "step_short                                                                           | BF16 F16 F32"
  "step_long                                                                            | BF16 F16 F32"
  "norm_gradient_rows                                                                   | BF16 F16"
  "norm_gradient                                                                        | F32"
  "swiglu swiglu_codes swiglu_options swiglu_rows                                       | BF16 F16 F32"
  "rope_general step_general                                                            | BF16 F16 F32"
  "rope_scalar rope_short rope_thread rope_token tables                                 | BF16 F16 F32"
  "rope_long                                                                            | BF16 F16"
  "norm_gradient rope_general step_general swiglu swiglu_options swiglu_rows tables     | F64")

set(ROPE_16_BIT_TYPES "BF16;F16" CACHE STRING
  "16-bit types that the CUDA backend has kernels for; one of them compiles in less time, for development")
set(rope_type_BF16 rope::BFloat16)
set(rope_type_F16 rope::Float16)
set(rope_type_F32 float)
set(rope_type_F64 double)
set(rope_variant_rope "int, const rope::RopeVariant &")
set(rope_variant_step "const rope::StepVariant &")
set(rope_variant_norm "const rope::StepVariant &")
set(rope_variant_swiglu "int, rope::SwigluVariant")
set(rope_variant_tables "")

# Sets `result` to the lines of a source that has the kernels of a file for some types.
function(rope_kernel_lines result file dtypes)
  string(REGEX REPLACE "_.*" "" family ${file})
  set(lines "#include \"backend/cuda/kernels/${file}.cuh\"\n")
  foreach(dtype IN LISTS dtypes)
    string(APPEND lines
      "template rope::Kernel rope::find_${file}_kernel<${rope_type_${dtype}}>(${rope_variant_${family}});\n")
  endforeach()
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

set(rope_kernel_sources "")
set(rope_without_type "")
foreach(row IN LISTS rope_kernel_files)
  string(REGEX MATCHALL "[a-z_]+" files "${row}")
  string(REGEX MATCHALL "[A-Z0-9]+" dtypes "${row}")
  foreach(dtype IN LISTS dtypes)
    if(dtype MATCHES "16" AND NOT dtype IN_LIST ROPE_16_BIT_TYPES)
      set(rope_without_type ROPE_WITHOUT_TYPE=${rope_type_${dtype}})
      continue()
    endif()
    set(text "// Made by src/backend/cuda/kernel_files.cmake\n")
    foreach(file IN LISTS files)
      list(APPEND rope_dtypes_of_${file} ${dtype})
      rope_kernel_lines(lines ${file} ${dtype})
      string(APPEND text "${lines}")
    endforeach()
    list(GET files 0 first)
    string(TOLOWER ${first}_${dtype}.cu name)
    set(source ${PROJECT_BINARY_DIR}/src/backend/cuda/kernels/${name})  # as if it lay beside the sources
    file(CONFIGURE OUTPUT ${source} CONTENT "${text}")
    list(APPEND rope_kernel_sources ${source})
  endforeach()
endforeach()
