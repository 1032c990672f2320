#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# wheel.py - builds the wheel and the source distribution, installs the wheel in a fresh environment, and uses it there:
# wheel.py WORK_FOLDER
"""The wheel is for the CPU only and has no loops for AVX, so that the test takes seconds: these change the library alone.
The test downloads nothing. It exits with 77, and prints the reason, if scikit-build-core, pip or venv is missing."""
import base64
import email
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
ROOT = PROJECT.parents[1]
SKIPPED = 77

# Variables of the build that runs this test are removed.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("ROPE_", "PYTHON"))}

# The calls that pip and build make in the folder of pyproject.toml.
BUILD = """
import sys
sys.path.insert(0, "")
import backend
if sys.argv[2] == "sdist":
    print(backend.build_sdist(sys.argv[1]))
else:
    print(backend.build_wheel(sys.argv[1], {"build-dir": sys.argv[2], "cmake.define.ROPE_CUDA": "OFF",
                                             "cmake.define.ROPE_HAS_X86_LEVELS": "OFF"}))
"""

# This program runs in the environment, away from the checkout.
USE = """
import pathlib, sys
import librope
from librope import _library
package = pathlib.Path(librope.__file__).parent
assert pathlib.Path(sys.prefix) in package.parents, package
assert _library.loaded_path() == str(package / "lib" / "librope.so.0"), _library.loaded_path()
assert librope.version() == librope.__version__ == sys.argv[1], librope.version()
assert librope.device_count("cpu") == 1
frequencies = librope.scaled_frequencies(8, 1e4, type="none")
assert frequencies.attention_scale == 1.0 and frequencies.inv_freq[0] == 1.0, frequencies
"""


def run(*command, check=True, **keywords):
    keywords = {"env": ENVIRONMENT, **keywords}
    result = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, **keywords)
    if check and result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout}")
    return result


def can_import(python, *modules):
    return shutil.which(python) and run(python, "-c", f"import {', '.join(modules)}", check=False).returncode == 0


def can_build(python):
    version = "import scikit_build_core; print(scikit_build_core.__version__)"
    result = run(python, "-c", version, check=False) if shutil.which(python) else None
    found = re.match(r"(\d+)\.(\d+)", result.stdout) if result is not None and result.returncode == 0 else None
    return found is not None and (int(found[1]), int(found[2])) >= (0, 11)


def build(builder, project, folder, build_folder):
    """The wheel of a project, or its source distribution if the build folder is "sdist"."""
    folder.mkdir(exist_ok=True)
    output = run(builder, "-B", "-c", BUILD, folder, build_folder, cwd=project).stdout
    built = folder / output.splitlines()[-1]
    print(built.name)
    return built


def needed_c_library(library):
    """The second number of the newest version of the GNU C library that a symbol requires."""
    symbols = run("objdump", "-T", library).stdout
    return max(int(minor) for minor in re.findall(r"\(?GLIBC_2\.(\d+)", symbols))


def check_libraries(name, file):
    """Versions of the C library, and for torch's operators also of C++'s, which are those of GCC 5."""
    needed = set(re.findall(r"NEEDED +(\S+)", run("objdump", "-p", file).stdout))
    needed = {library for library in needed if not re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", library)}
    allowed = {"libstdc++.so.6", "libgcc_s.so.1"} if name.endswith("librope_torch.so") else set()
    versions = re.findall(r"GLIBCXX_3\.4\.(\d+)", run("objdump", "-T", file).stdout)
    if needed - allowed or any(int(version) > 21 for version in versions):
        sys.exit(f"{name} needs {sorted(needed)} and GLIBCXX_3.4.{max(map(int, versions), default=0)}")


def check_wheel(wheel, version):
    package = {f"librope/{path.name}" for path in (PROJECT / "librope").iterdir() if path.is_file()}
    info = f"librope-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    libraries = {f"librope/lib/{name}" for name in ("librope.so.0", "librope_python.so", "librope_torch.so")}
    expected = package | libraries | {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")}
    if set(files) != expected:
        sys.exit(f"the wheel has {sorted(files)}")
    # Only a whole path counts: a checkout in /librope is not in lib/librope.so.
    checkout = re.compile(rb"(?:^|-(?:I|L|B|F|isystem|iquote)|[^\w.}-])" + re.escape(str(ROOT)).encode())
    for name, contents in files.items():
        if checkout.search(contents):
            sys.exit(f"{name} names the folder that it was built in")

    minors = [24]  # systems with it have the C++ library that the second file needs
    for name in libraries:
        with tempfile.NamedTemporaryFile() as library:
            library.write(files[name])
            library.flush()
            minors.append(needed_c_library(library.name))
            check_libraries(name, library.name)
    tag = f"py3-none-manylinux_2_{max(minors)}_{platform.machine()}"
    if wheel.name != f"librope-{version}-{tag}.whl":
        sys.exit(f"{wheel.name} is not librope-{version}-{tag}.whl")
    if email.message_from_bytes(files[f"{info}/WHEEL"]).get_all("Tag") != [tag]:
        sys.exit(f"WHEEL says another tag than {tag}:\n{files[f'{info}/WHEEL'].decode()}")
    record = []
    for name, contents in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).decode().rstrip("=")
        record.append(f"{name},," if name == f"{info}/RECORD" else f"{name},sha256={digest},{len(contents)}")
    if files[f"{info}/RECORD"].decode().splitlines() != record:
        sys.exit(f"RECORD is not what the wheel has:\n{files[f'{info}/RECORD'].decode()}")

    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    for field, value in {"Name": "librope", "Version": version, "License-Expression": "Apache-2.0",
                         "License-File": "LICENSE", "Requires-Python": ">=3.9",
                         "Description-Content-Type": "text/markdown"}.items():
        if metadata.get_all(field) != [value]:
            sys.exit(f"METADATA: {field} is {metadata.get_all(field)}, not {value}")
    for field in ("Summary", "Keywords", "Classifier"):
        if not metadata[field]:
            sys.exit(f"METADATA has no {field}")
    if metadata.get_payload(decode=True) != (PROJECT / "README.md").read_bytes():
        sys.exit("METADATA does not have README.md")


def check_same_libraries(*wheels):
    """The wheels are equal, whether built from the checkout or from its source distribution."""
    for name in ("librope.so.0", "librope_python.so", "librope_torch.so"):
        contents = []
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                contents.append(archive.read(f"librope/lib/{name}"))
        if contents[0] != contents[1]:
            sys.exit(f"{name} depends on the folder that it is built in")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    work = Path(sys.argv[1]).resolve()
    # The wheel is for every Python, so another Python than the one that builds it may use it.
    builder = next((python for python in (sys.executable, "/usr/bin/python3") if can_build(python)), None)
    if builder is None:
        skip("needs scikit-build-core 0.11")
    if not can_import(sys.executable, "pip", "venv"):
        skip("needs pip and venv")
    shutil.rmtree(work / "wheels", ignore_errors=True)
    shutil.rmtree(work / "environment", ignore_errors=True)
    (work / "wheels").mkdir(parents=True)

    header = (ROOT / "include" / "rope" / "rope.h").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"define ROPE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    wheel = build(builder, PROJECT, work / "wheels", work / "build")
    check_wheel(wheel, f"{version}+cpu")

    # This folder is far from the checkout: the package must not need its files.
    with tempfile.TemporaryDirectory() as folder:
        sdist = build(builder, PROJECT, Path(folder), "sdist")
        if sdist.name != f"librope-{version}.tar.gz":
            sys.exit(f"not a source distribution of version {version}: {sdist.name}")
        with tarfile.open(sdist) as archive:
            if not all(entry.isfile() for entry in archive):
                sys.exit(f"{sdist.name} has links: {archive.getnames()}")
            names = set(archive.getnames())
            archive.extractall(folder)
        unpacked = Path(folder, f"librope-{version}")
        with tarfile.open(build(builder, unpacked, Path(folder, "again"), "sdist")) as archive:
            if set(archive.getnames()) != names:
                sys.exit(f"the source distribution makes another one: {archive.getnames()}")
        other = build(builder, unpacked, Path(folder, "wheels"), Path(folder, "build"))
        check_wheel(other, version)
        check_same_libraries(wheel, other)

    environment = work / "environment"
    run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", wheel, cwd=work)
    run(python, "-c", USE, version, cwd=work)
    print(run(python, "-m", "librope", cwd=work).stdout, end="")
    # numpy is that of the Python that runs this test, if it has one.
    found = run(sys.executable, "-c", "import numpy; print(numpy.__file__)", check=False)
    if found.returncode != 0:
        print("without numpy, the tests of the package are not run on it")
        return
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    Path(packages, "numpy_of_the_builder.pth").write_text(f"{Path(found.stdout.strip()).parents[1]}\n")
    print(run(python, HERE / "readme_example.py", cwd=work).stdout, end="")
    tests = run(python, "-m", "unittest", "test_numpy", "test_protocols", "test_frequencies", "test_calls", cwd=work,
                env={**ENVIRONMENT, "PYTHONPATH": str(HERE)})
    print(tests.stdout, end="")


if __name__ == "__main__":
    main()
