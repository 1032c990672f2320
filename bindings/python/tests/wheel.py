#!/usr/bin/env python3
# wheel.py - builds the wheel, installs it in a fresh environment, and uses it there: wheel.py WORK_FOLDER
"""For the CPU only, so that it takes seconds; CUDA changes the library alone. Fetches nothing. Exits 77, with the
reason, where scikit-build-core, pip or venv is missing."""
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
ROOT = PROJECT.parents[1]
SKIPPED = 77

# Nothing of the build that runs this test.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("ROPE_", "PYTHON"))}

BUILD = """
import sys
from scikit_build_core.build import build_wheel
print(build_wheel(sys.argv[1], {"build-dir": sys.argv[2], "cmake.define.ROPE_CUDA": "OFF"}))
"""

# Runs in the environment, away from the checkout.
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


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    work = Path(sys.argv[1]).resolve()
    # The wheel is for every Python, so the one that builds it need not be the one that uses it.
    builder = next((python for python in (sys.executable, "/usr/bin/python3") if can_build(python)), None)
    if builder is None:
        skip("needs scikit-build-core 0.11")
    if not can_import(sys.executable, "pip", "venv"):
        skip("needs pip and venv")
    shutil.rmtree(work / "wheels", ignore_errors=True)
    shutil.rmtree(work / "environment", ignore_errors=True)
    (work / "wheels").mkdir(parents=True)

    built = run(builder, "-c", BUILD, work / "wheels", work / "build", cwd=PROJECT)
    wheel, = (work / "wheels").iterdir()
    print(wheel.name)
    header = (ROOT / "include" / "rope" / "rope.h").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"define ROPE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    if not re.fullmatch(rf"librope-{re.escape(version)}-py3-none-(manylinux_2_34|linux)_\w+\.whl", wheel.name):
        sys.exit(f"not a wheel of version {version} for every Python:\n{built.stdout}")

    package = {f"librope/{path.name}" for path in (PROJECT / "librope").iterdir() if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        if found != package | {"librope/lib/librope.so.0"}:
            sys.exit(f"the wheel has {sorted(found)}")
        # Not inside another path: a checkout in /librope is not in lib/librope.so.
        checkout = re.compile(rb"(?:^|-(?:I|L|B|F|isystem|iquote)|[^\w.}-])" + re.escape(str(ROOT)).encode())
        for name in archive.namelist():
            if checkout.search(archive.read(name)):
                sys.exit(f"{name} names the folder that it was built in")
        if not any(name.endswith("LICENSE") for name in archive.namelist()):
            sys.exit("the wheel has no LICENSE")

    environment = work / "environment"
    run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", wheel, cwd=work)
    run(python, "-c", USE, version, cwd=work)
    print(run(python, "-m", "librope", cwd=work).stdout, end="")
    # numpy is that of the Python that runs this, where it has one.
    found = run(sys.executable, "-c", "import numpy; print(numpy.__file__)", check=False)
    if found.returncode != 0:
        print("without numpy, the tests of the package are not run on it")
        return
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    Path(packages, "numpy_of_the_builder.pth").write_text(f"{Path(found.stdout.strip()).parents[1]}\n")
    print(run(python, HERE / "readme_example.py", cwd=work).stdout, end="")
    tests = run(python, "-m", "unittest", "test_numpy", "test_protocols", "test_frequencies", cwd=work,
                env={**ENVIRONMENT, "PYTHONPATH": str(HERE)})
    print(tests.stdout, end="")


if __name__ == "__main__":
    main()
