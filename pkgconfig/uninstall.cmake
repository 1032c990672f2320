# SPDX-License-Identifier: Apache-2.0
# cmake -D MANIFEST=… -P uninstall.cmake: removes the files that `cmake --install` wrote down in the manifest, below
# DESTDIR if that is set, and librope's own folders when they are empty.

cmake_minimum_required(VERSION 3.22)

if(NOT EXISTS "${MANIFEST}")
  message(FATAL_ERROR "nothing was installed from this build folder: there is no ${MANIFEST}")
endif()
file(STRINGS "${MANIFEST}" files)
set(folders "")
foreach(file IN LISTS files)
  set(file "$ENV{DESTDIR}${file}")
  message(STATUS "Removing ${file}")
  file(REMOVE "${file}")
  cmake_path(GET file PARENT_PATH folder)
  list(APPEND folders "${folder}")
endforeach()
# Folders inside others first. Those named rope, and the folders inside them, have nothing but librope's files.
list(REMOVE_DUPLICATES folders)
list(SORT folders ORDER DESCENDING)
foreach(folder IN LISTS folders)
  while(folder MATCHES "/rope(/|$)")
    file(GLOB left "${folder}/*")
    if(left OR NOT IS_DIRECTORY "${folder}")
      break()
    endif()
    file(REMOVE_RECURSE "${folder}")
    cmake_path(GET folder PARENT_PATH folder)
  endwhile()
endforeach()
file(REMOVE "${MANIFEST}")
