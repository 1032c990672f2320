# SPDX-License-Identifier: Apache-2.0
# test_loader.py - where the library is looked for, the error if it is missing, and what python -m librope prints
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import librope
from librope import _library

PACKAGE_ROOT = str(Path(librope.__file__).resolve().parents[1])
LOADED = Path(_library.loaded_path())


def run(code, **environment):
    """Runs Python with these variables instead of this process's ROPE_ ones. Returns (exit status, stdout, stderr)."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROPE_L")}
    process = subprocess.run(
        [sys.executable, *code], capture_output=True, text=True,
        env={**inherited, "PYTHONPATH": PACKAGE_ROOT, **environment})
    return process.returncode, process.stdout, process.stderr


PRINT_PATH = ["-c", "import librope; print(librope._library.loaded_path())"]


class LoaderTest(unittest.TestCase):
    def test_rope_library_is_the_only_candidate(self):
        status, _, errors = run(PRINT_PATH, ROPE_LIBRARY="/nowhere/librope.so.0", ROPE_LIB_DIR=str(LOADED.parent))
        self.assertNotEqual(status, 0)
        self.assertIn("ImportError", errors)
        self.assertIn("/nowhere/librope.so.0 (ROPE_LIBRARY): /nowhere/librope.so.0: cannot open shared object", errors)
        self.assertNotIn("package", errors.split("ImportError")[1])

    def test_rope_library_names_a_file(self):
        status, output, errors = run(PRINT_PATH, ROPE_LIBRARY=str(LOADED))
        self.assertEqual((status, output.strip()), (0, str(LOADED)), errors)

    def test_rope_lib_dir_names_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "librope.so.0").symlink_to(LOADED)
            status, output, errors = run(PRINT_PATH, ROPE_LIB_DIR=folder)
        self.assertEqual((status, output.strip()), (0, str(LOADED)), errors)

    def test_every_path_and_its_reason_is_said(self):
        if Path(librope.__file__).with_name("lib").exists():
            self.skipTest("this package has a library inside")
        status, output, errors = run(PRINT_PATH)
        if status == 0:
            self.skipTest(f"the system has {output.strip()}")
        self.assertIn("lib/librope.so.0 (inside the package): ", errors)
        self.assertIn("librope.so.0 (the system's loader): librope.so.0: cannot open shared object file", errors)
        self.assertIn("Set ROPE_LIBRARY to the file, or ROPE_LIB_DIR to its folder.", errors)

    def test_a_file_that_is_no_librope(self):
        _, _, errors = run(PRINT_PATH, ROPE_LIBRARY="libm.so.6")
        self.assertIn("undefined symbol: rope_version; the file is no librope", errors)

    def test_report(self):
        status, output, errors = run(["-m", "librope"], ROPE_LIBRARY=str(LOADED))
        self.assertEqual(status, 0, errors)
        for text in (librope.version(), str(LOADED), librope.build_info(), "driver", "CUDA"):
            self.assertIn(text, output)
        if librope.device_count("cuda") == 0:
            self.assertIn(librope.why_no_device(), output)

    def test_import_needs_the_standard_library_only(self):
        status, output, errors = run(
            ["-I", "-S", "-c", f"import sys; sys.path.insert(0, {PACKAGE_ROOT!r}); import librope; "
             "print([m for m in ('numpy', 'torch', 'transformers') if m in sys.modules])"], ROPE_LIBRARY=str(LOADED))
        self.assertEqual((status, output.strip()), (0, "[]"), errors)


if __name__ == "__main__":
    unittest.main()
