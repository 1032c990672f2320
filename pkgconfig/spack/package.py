# SPDX-License-Identifier: Apache-2.0
# A Spack package of librope: spack repo create REPO; cp package.py REPO/packages/librope/; spack repo add REPO;
# spack install librope. The names in @ @ are filled in by .ci/release.
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Librope(CMakePackage, CudaPackage):
    """Rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and NVIDIA GPUs, behind a C ABI."""

    homepage = "https://github.com/librope/librope"
    url = "https://github.com/librope/librope/releases/download/v@VERSION@/librope-@VERSION@-src.tar.gz"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    variant("libs", default="shared,static", values=("shared", "static"), multi=True, description="Libraries to build")
    variant("docs", default=False, description="The reference of rope.h as HTML and man pages")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("doxygen", type="build", when="+docs")
    depends_on("gawk", type="build", when="+docs")
    depends_on("cuda@12:", when="+cuda")

    requires("platform=linux")

    def cmake_args(self):
        args = [
            self.define_from_variant("ROPE_CUDA", "cuda"),
            self.define_from_variant("ROPE_BUILD_DOCS", "docs"),
            self.define("ROPE_BUILD_EXAMPLES", False),
        ]
        # Both are built unless BUILD_SHARED_LIBS is set.
        if not self.spec.satisfies("libs=shared,static"):
            args.append(self.define("BUILD_SHARED_LIBS", self.spec.satisfies("libs=shared")))
        # Without cuda_arch the library has code for every architecture of the toolkit.
        if self.spec.satisfies("+cuda") and not self.spec.satisfies("cuda_arch=none"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
