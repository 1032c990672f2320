# SPDX-License-Identifier: Apache-2.0
# test_readme.py - the Python program in the package's README.md equals readme_example.py, but for its licence, and runs
from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

import support  # noqa: F401

HERE = Path(__file__).resolve().parent


class ReadmeTest(unittest.TestCase):
    def test_the_program_is_the_one_that_runs(self):
        example = HERE / "readme_example.py"
        program = example.read_text().split("\n", 1)[1]
        self.assertIn(f"```python\n{program}```", (HERE.parent / "README.md").read_text())
        output = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=True).stdout
        self.assertIn("position       1: the first pair is ( 0.540302,  0.841471)", output)
        self.assertIn("position 1000000: the first pair is ( 0.936752, -0.349993)", output)
        self.assertIn("swiglu(1, 1) is 0.731059", output)


if __name__ == "__main__":
    unittest.main()
