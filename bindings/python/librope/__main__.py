# __main__.py - python -m librope: which library was loaded, and what it can use here
import sys

import librope
from librope import _cuda, _library


def main() -> int:
    print(f"librope     {librope.version()} (package {librope.__version__})")
    print(f"library     {_library.loaded_path()}")
    print(f"build       {librope.build_info()}")
    print(f"CPU         {librope.device_count('cpu')} device")
    count = librope.device_count("cuda")
    why = librope.why_no_device()
    print(f"CUDA        {count} device{'' if count == 1 else 's'}" + (f": {why}" if why else ""))
    print(f"driver      {_cuda.driver_description()}")
    print(f"Python      {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
