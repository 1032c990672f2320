# SPDX-License-Identifier: Apache-2.0
# backend.py - the build backend: scikit-build-core, for a library with its sources outside this folder
"""A source distribution contains the library's sources. A wheel's name states the oldest C library that it needs, read
from the symbols of the library inside. If the wheel is built from a checkout, its version also states what the library
was built for: 0.1.0+cpu, 0.1.0+cu13. The version of a source distribution is not changed, because it has been
published.

prepare_metadata_for_build_wheel is missing because the version depends on the library that was built. build_editable is
missing because the package would not find the library, which is in another folder than its files. In a checkout
PYTHONPATH and ROPE_LIB_DIR do the same."""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from scikit_build_core import build as scikit_build
from scikit_build_core.build import get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_sdist", "get_requires_for_build_wheel"]

LIBRARY = "librope/lib/librope.so.0"
BUILTINS = "librope/lib/librope_python.so"
TORCH_OPERATORS = "librope/lib/librope_torch.so"
OF_THE_C_LIBRARY = r"lib(c|m|dl|rt|pthread)\.so\.[0-9]|ld-linux.*"
# libtorch, which calls TORCH_OPERATORS, has loaded these. Every system with the GNU C library 2.24 has these versions.
OF_CXX = r"libstdc\+\+\.so\.6|libgcc_s\.so\.1"
CXX_VERSIONS = {"GLIBCXX": (3, 4, 21), "CXXABI": (1, 3, 9), "GCC": (4, 3, 0)}
CXX_MINOR = 24


def build_sdist(sdist_directory, config_settings=None):
    project, output = Path.cwd(), Path(sdist_directory).resolve()
    if is_sdist(project):
        return scikit_build.build_sdist(str(output), config_settings)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("LICENSE", "README.md", "backend.py", "librope", "pyproject.toml"):
            copy(project / name, folder)
        for name in ("CHANGELOG.md", "CMakeLists.txt", "include", "src"):
            copy(project.parents[1] / name, folder)
        native = Path(folder, project.relative_to(project.parents[1]))  # CMakeLists.txt looks for it there
        native.mkdir(parents=True)
        copy(project / "native", native)
        os.chdir(folder)
        try:
            return scikit_build.build_sdist(str(output), config_settings)
        finally:
            os.chdir(project)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, scikit_build.build_wheel(folder, config_settings))
        return rename(wheel, Path(wheel_directory), with_flavour=not is_sdist(Path.cwd()))


def is_sdist(project):
    return (project / "PKG-INFO").is_file()


def copy(source, folder):
    if source.is_dir():
        shutil.copytree(source, Path(folder, source.name), ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, folder)


def rename(wheel, folder, with_flavour):
    """Writes the wheel to the folder under the name that its library requires, and returns the name."""
    name, version, *build_tag, python, abi, system = wheel.stem.split("-")
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as old:
        files = {entry.filename: old.read(entry) for entry in old.infolist()}
        entries = old.infolist()
        old_record = old.getinfo(f"{info}/RECORD")
    flavour = files.pop(f"{info}/flavour").decode().strip()
    new_system = system_tag(system, [files[LIBRARY], files[BUILTINS]], files[TORCH_OPERATORS])
    new_version = f"{version}+{flavour}" if with_flavour else version
    new_info = f"{name}-{new_version}.dist-info"

    files[f"{info}/METADATA"] = replaced(files[f"{info}/METADATA"], f"Version: {version}", f"Version: {new_version}")
    files[f"{info}/WHEEL"] = replaced(
        files[f"{info}/WHEEL"], f"Tag: {python}-{abi}-{system}", f"Tag: {python}-{abi}-{new_system}")
    del files[f"{info}/RECORD"]
    record = []
    new_wheel = folder / ("-".join([name, new_version, *build_tag, python, abi, new_system]) + ".whl")
    with zipfile.ZipFile(new_wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in entries:
            if entry.filename in files:
                contents = files[entry.filename]
                entry.filename = entry.filename.replace(f"{info}/", f"{new_info}/")
                digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
                record.append(f"{entry.filename},sha256={digest},{len(contents)}\n")
                new.writestr(entry, contents)
        last = zipfile.ZipInfo(f"{new_info}/RECORD", old_record.date_time)
        last.external_attr = old_record.external_attr
        new.writestr(last, "".join(record) + f"{last.filename},,\n")
    return new_wheel.name


def replaced(contents, line, new_line):
    text = contents.decode()
    assert f"\n{line}\n" in f"\n{text}", f"{line} is not in:\n{text}"
    return f"\n{text}".replace(f"\n{line}\n", f"\n{new_line}\n", 1)[1:].encode()


def system_tag(system, libraries, torch_operators):
    """Replaces linux_… by manylinux_2_N_… if all of the libraries need the GNU C library 2.N and nothing else;
    torch_operators may also need C++'s."""
    minors = []
    for contents, other_libraries, other_versions in (
            *[(library, r"(?!)", {}) for library in libraries], (torch_operators, OF_CXX, CXX_VERSIONS)):
        with tempfile.NamedTemporaryFile() as file:
            file.write(contents)
            file.flush()
            try:
                text = subprocess.run(["readelf", "-dVW", file.name], env={**os.environ, "LC_ALL": "C"}, text=True,
                                      stdout=subprocess.PIPE, check=True).stdout
            except FileNotFoundError:
                return system
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if not re.fullmatch(f"{OF_THE_C_LIBRARY}|{other_libraries}", name):
                return system
        for family, version in re.findall(r"Name: ([A-Z]+)_(\S+) +Flags", text):
            numbers = tuple(int(part) for part in version.split(".")) if re.fullmatch(r"[\d.]+", version) else None
            if numbers and family == "GLIBC" and numbers[0] == 2:
                minors.append(numbers[1])
            elif numbers and numbers <= other_versions.get(family, ()):
                minors.append(CXX_MINOR)
            else:
                return system
    return re.sub(r"^linux_", f"manylinux_2_{max(minors)}_", system) if minors else system
