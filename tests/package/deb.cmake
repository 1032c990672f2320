# SPDX-License-Identifier: Apache-2.0
# cmake … -P deb.cmake: librope0 has the files that programs load and librope-dev the others; its symbols file is that of
# the library; with SOURCE_DATE_EPOCH, packing again gives the same bytes; lintian reports nothing, hardening included.
# FLAVOUR is cpu, or names the CUDA Toolkit, for example cuda13.

cmake_minimum_required(VERSION 3.22)

if(NOT DPKG_DEB)
  message("SKIPPED: there is no dpkg-deb")
  return()
endif()
if(NOT PREFIX STREQUAL "/usr")
  message("SKIPPED: Debian packages want -DCMAKE_INSTALL_PREFIX=/usr, for the folders of the architecture")
  return()
endif()
set(ENV{SOURCE_DATE_EPOCH} 1700000000)
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CPACK}" --config "${BUILD}/CPackConfig.cmake" -G DEB -B "${WORK}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB packages "${WORK}/*.deb")
execute_process(COMMAND "${CPACK}" --config "${BUILD}/CPackConfig.cmake" -G DEB -B "${WORK}/again"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(package IN LISTS packages)
  cmake_path(GET package FILENAME name)
  file(SHA256 "${package}" first)
  file(SHA256 "${WORK}/again/${name}" second)
  if(NOT first STREQUAL second)
    message(SEND_ERROR "${package} and ${WORK}/again/${name} differ")
  endif()
  execute_process(COMMAND "${DPKG_DEB}" --field "${package}" Homepage
    OUTPUT_VARIABLE homepage OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT homepage STREQUAL HOMEPAGE)
    message(SEND_ERROR "Homepage of ${name} is '${homepage}', not ${HOMEPAGE}")
  endif()
endforeach()
set(name_of_librope0 librope0)
set(name_of_librope-dev librope-dev)
if(NOT FLAVOUR STREQUAL "cpu")
  set(name_of_librope0 librope0-${FLAVOUR})
  set(name_of_librope-dev librope-${FLAVOUR}-dev)
endif()
foreach(package IN ITEMS librope0 librope-dev)
  file(GLOB file "${WORK}/${name_of_${package}}_${VERSION}-1_*.deb")
  execute_process(COMMAND sh -c "'${DPKG_DEB}' --fsys-tarfile '${file}' | tar -t"
    OUTPUT_VARIABLE ${package} COMMAND_ERROR_IS_FATAL ANY)
  # One flavour replaces another.
  execute_process(COMMAND "${DPKG_DEB}" --field "${file}" Provides Conflicts Replaces
    OUTPUT_VARIABLE relations COMMAND_ERROR_IS_FATAL ANY)
  set(expected "Provides: ${package} (= ${VERSION}-1)\nConflicts: ${package}\nReplaces: ${package}\n")
  if(NOT FLAVOUR STREQUAL "cpu" AND NOT relations STREQUAL expected)
    message(SEND_ERROR "${name_of_${package}} must have\n${expected}and has\n${relations}")
  endif()
endforeach()
file(GLOB file "${WORK}/${name_of_librope0}_*.deb")
execute_process(COMMAND "${DPKG_DEB}" --info "${file}" shlibs
  OUTPUT_VARIABLE shlibs COMMAND_ERROR_IS_FATAL ANY)
if(NOT shlibs STREQUAL "librope 0 librope0 (>= ${VERSION}-1)\n")
  message(SEND_ERROR "packages that are built against librope would depend on '${shlibs}'")
endif()
# dpkg-gensymbols, of the package that has dpkg-shlibdeps, compares the symbols file with the library.
file(MAKE_DIRECTORY "${WORK}/librope0/debian")
file(WRITE "${WORK}/librope0/debian/control" "Source: librope\n\nPackage: librope0\nArchitecture: any\n")
execute_process(COMMAND "${DPKG_DEB}" --extract "${file}" "${WORK}/librope0/files" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${DPKG_DEB}" --control "${file}" "${WORK}/librope0/control" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE library "${WORK}/librope0/files/usr/lib/*/librope.so.${VERSION}")
execute_process(
  COMMAND dpkg-gensymbols -c4 -plibrope0 -v${VERSION} -Icontrol/symbols -e${library} -Ogenerated
  WORKING_DIRECTORY "${WORK}/librope0" COMMAND_ERROR_IS_FATAL ANY)
foreach(file IN ITEMS librope.so.0 librope.so.${VERSION})
  string(FIND "${librope0}" "/${LIBDIR}/${file}\n" at)
  if(at EQUAL -1)
    message(SEND_ERROR "librope0 has no ${file}:\n${librope0}")
  endif()
endforeach()
foreach(file IN ITEMS ${LIBDIR}/librope.so ${LIBDIR}/librope.a include/rope/rope.h ${LIBDIR}/pkgconfig/rope.pc
                      ${LIBDIR}/cmake/rope/ropeConfig.cmake)
  string(FIND "${librope-dev}" "/${file}\n" at)
  string(FIND "${librope0}" "/${file}\n" at_runtime)
  if(at EQUAL -1 OR NOT at_runtime EQUAL -1)
    message(SEND_ERROR "${file} belongs in librope-dev alone:\n${librope0}${librope-dev}")
  endif()
endforeach()
if(LINTIAN)
  execute_process(COMMAND "${LINTIAN}" --fail-on error,warning --display-info --allow-root ${packages}
    OUTPUT_VARIABLE remarks RESULT_VARIABLE result)
  message("${remarks}")
  if(NOT result EQUAL 0 OR remarks MATCHES "hardening|no-symbols-control-file|no-homepage-field")
    message(SEND_ERROR "lintian has errors or warnings, or remarks on hardening, symbols or the homepage")
  endif()
else()
  message("lintian is not installed: its part was left out")
endif()
