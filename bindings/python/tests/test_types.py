# test_types.py - the type hints of the package hold among themselves
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

support.needs("mypy")


class TypesTest(unittest.TestCase):
    def test_mypy(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-imports=skip", "--cache-dir",
                 os.path.join(folder, "cache"), str(Path(__file__).resolve().parents[1] / "librope")],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
