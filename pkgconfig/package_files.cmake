# SPDX-License-Identifier: Apache-2.0
# CPack runs this before it packs the staged files: libraries are stripped as Debian's tools do it, and with
# SOURCE_DATE_EPOCH (seconds since 1970) the files of one build always give the same package.

file(GLOB_RECURSE libraries "${CPACK_TEMPORARY_DIRECTORY}/*.a" "${CPACK_TEMPORARY_DIRECTORY}/*.so.*")
foreach(library IN LISTS libraries)
  # nvcc puts names of temporary files into the symbols that are removed.
  if(NOT IS_SYMLINK "${library}")
    execute_process(
      COMMAND "@CMAKE_STRIP@" --strip-unneeded --remove-section=.comment --remove-section=.gnu.lto_*
              --remove-section=.gnu.debuglto_* -N __gnu_lto_slim -N __gnu_lto_v1 --enable-deterministic-archives
              "${library}"
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  execute_process(COMMAND find "${CPACK_TEMPORARY_DIRECTORY}" -exec touch -h -d "@$ENV{SOURCE_DATE_EPOCH}" {} +
    COMMAND_ERROR_IS_FATAL ANY)
endif()
