# SPDX-License-Identifier: Apache-2.0
# A vcpkg port of librope: vcpkg install librope --overlay-ports=FOLDER, where this folder is FOLDER/librope. The names
# in @ @ are filled in by .ci/release.
vcpkg_download_distfile(archive
  URLS "https://github.com/librope/librope/releases/download/v${VERSION}/librope-${VERSION}-src.tar.gz"
  FILENAME "librope-${VERSION}-src.tar.gz"
  SHA512 @SHA512@)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${archive}")

set(options -DROPE_CUDA=OFF)
if("cuda" IN_LIST FEATURES)
  vcpkg_find_cuda(OUT_CUDA_TOOLKIT_ROOT cuda_root)
  set(options -DROPE_CUDA=ON "-DCMAKE_CUDA_COMPILER=${cuda_root}/bin/nvcc")
endif()
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DROPE_BUILD_EXAMPLES=OFF ${options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME rope CONFIG_PATH lib/cmake/rope)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
