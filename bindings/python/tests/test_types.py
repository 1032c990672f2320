# SPDX-License-Identifier: Apache-2.0
# test_types.py - the package's type hints are consistent, and give a program the right types
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

support.needs("mypy")

HERE = Path(__file__).resolve().parent
PACKAGE, PROGRAM = HERE.parent / "librope", HERE / "typed_program.py"


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], env={**os.environ, "MYPYPATH": str(HERE.parent)}, cwd=folder,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def pyright(path):
    """The names of files, and the errors that the strict mode reports for them."""
    with tempfile.TemporaryDirectory() as folder:
        # Files of a project lie below its folder.
        os.symlink(path, os.path.join(folder, path.name))
        with open(os.path.join(folder, "pyrightconfig.json"), "w") as file:
            json.dump({"include": [path.name], "extraPaths": [str(HERE.parent)], "typeCheckingMode": "strict",
                       "pythonVersion": "3.9", "reportUnnecessaryTypeIgnoreComment": "error"}, file)
        result = run(folder, "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", folder)
    report = json.loads(result.stdout)
    if not report["summary"]["filesAnalyzed"]:
        raise AssertionError(result.stdout)
    return [(Path(found["file"]).name, f"{found['range']['start']['line'] + 1}: {found['message']}")
            for found in report["generalDiagnostics"]]


class TypesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name  # it keeps mypy's caches of other packages

    def check(self, *arguments):
        result = run(self.folder, "mypy", "--cache-dir", os.path.join(self.folder, "cache"), *arguments)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_mypy(self):
        self.check("--ignore-missing-imports", "--follow-imports=skip", PACKAGE)

    def test_mypy_strict(self):
        support.needs("torch", "transformers")
        self.check("--strict", "--follow-imports=silent", PACKAGE)

    def test_a_program(self):
        support.needs("jax", "torch")
        self.check("--strict", "--follow-imports=silent", PROGRAM)


@unittest.skipUnless(importlib.util.find_spec("pyright"), "needs pyright")
class PyrightTest(unittest.TestCase):
    def test_strict(self):
        support.needs("torch", "transformers")
        self.assertEqual(pyright(PACKAGE), [])

    def test_a_program(self):
        support.needs("jax", "torch")
        self.assertEqual(pyright(PROGRAM), [])


if __name__ == "__main__":
    unittest.main()
