# SPDX-License-Identifier: Apache-2.0
# __main__.py - python -m librope: prints which library was loaded, and what it can use on this machine
import importlib.util
import sys

import librope
from librope._calls import why_ctypes
from librope._cuda import driver_description
from librope._library import loaded_path


def torch_description() -> str:
    """For example "2.15.0, operators of C++"."""
    if importlib.util.find_spec("torch") is None:
        return "none"
    import torch

    version = str(torch.__version__)
    try:
        from librope._torch_operators import why_python
    except (AttributeError, ImportError) as error:
        return f"{version}, too old for librope.torch: {error}"
    return f"{version}, operators of " + ("C++" if why_python is None else f"Python: {why_python}")


def main() -> int:
    print(f"librope     {librope.version()} (package {librope.__version__})")
    print(f"library     {loaded_path()}")
    print(f"build       {librope.build_info()}")
    print(f"CPU         {librope.device_count('cpu')} device")
    count = librope.device_count("cuda")
    why = librope.why_no_device()
    print(f"CUDA        {count} device{'' if count == 1 else 's'}" + (f": {why}" if why else ""))
    print(f"driver      {driver_description()}")
    print("calls       by " + (f"ctypes: {why_ctypes}" if why_ctypes else "builtins"))
    print(f"torch       {torch_description()}")
    print(f"Python      {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
