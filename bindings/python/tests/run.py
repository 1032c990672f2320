#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# run.py - runs test files: python3 bindings/python/tests/run.py [test_numpy ...]; all of them without an argument
"""The library is $ROPE_LIBRARY or in $ROPE_LIB_DIR. Exits with 77 if every test was skipped, and prints the reasons."""
import os
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 77


class Result(unittest.TextTestResult):
    """Counts the tests that passed: testsRun does not show tests of a class that was skipped as a whole."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main() -> int:
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    # Subprocesses must find the package, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    names = [Path(name).stem for name in sys.argv[1:]] or sorted(path.stem for path in HERE.glob("test_*.py"))
    suite = unittest.TestSuite()
    skipped_files = []
    for name in names:
        try:
            suite.addTests(unittest.defaultTestLoader.loadTestsFromName(name))
        except unittest.SkipTest as reason:
            skipped_files.append(f"{name}: {reason}")
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    for text in skipped_files:
        print(f"skipped: {text}")
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped) + len(skipped_files)
    print(f"{result.passed} passed, {failed} failed, {skipped} skipped")
    if not result.wasSuccessful():
        return 1
    return 0 if result.passed else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
