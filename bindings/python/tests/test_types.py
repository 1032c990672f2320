# test_types.py - the type hints of the package hold among themselves, and tell a program what it gets
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

support.needs("mypy")

HERE = Path(__file__).resolve().parent


class TypesTest(unittest.TestCase):
    def check(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, "-m", "mypy", "--cache-dir", os.path.join(folder, "cache"), *map(str, arguments)],
                env={**os.environ, "MYPYPATH": str(HERE.parent)}, cwd=folder, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_mypy(self):
        self.check("--ignore-missing-imports", "--follow-imports=skip", HERE.parent / "librope")

    def test_a_program(self):
        support.needs("jax", "torch")
        self.check("--follow-imports=silent", "--warn-unused-ignores", HERE / "typed_program.py")


if __name__ == "__main__":
    unittest.main()
