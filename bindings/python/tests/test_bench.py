# SPDX-License-Identifier: Apache-2.0
# test_bench.py - bench.py measures each of its rows after it has compared their results, or says why it does not
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support

torch = support.needs("torch")

import bench  # noqa: E402

OPERATOR = "the operator"
OTHERS = "Liger", "flash-attn"  # they may be installed, and need a GPU

# For each row: the candidates beside it, and whether it has a limit.
ROWS = {
    "desc/in-place": (OPERATOR, True), "desc/new": (OPERATOR, True), "desc/numpy": ("in a loop in C", True),
    "desc/numpy/ctypes": ("by ctypes", True), "torch/apply_rotary": (OPERATOR, True),
    "torch/rotary_step": (OPERATOR, False), "swiglu/desc": (OPERATOR, False), "swiglu/function": (OPERATOR, False),
    "swiglu/torch": ("silu(x) * up in eager", True), "swiglu/torch/backward": ("silu(x) * up in eager", False),
    **{f"grad/{direction}/{name}": row for direction in ("forward", "backward") for name, row in (
        ("liger", ("Liger", True)), ("formula", ("formula in eager", True)), ("flash-attn", ("flash-attn", False)))},
    **{f"compiled/{direction}/{tokens}": ("compiled formula", True)
       for direction in ("forward", "backward") for tokens in (8, 512, 4096)},
    **{f"swiglu/compiled/{rows}": ("compiled silu(x) * up", True) for rows in (8, 64, 1024)},
    **{f"llama/{step}/{mode}": ("not patched", True) for step in ("decode", "training")
       for mode in ("eager", "compiled", "compiled-graphs", "graph")},
}


def run(folder, *arguments):
    """The exit status, the rows by name, and the printed text."""
    file = Path(folder, "rows.json")
    result = subprocess.run(
        [sys.executable, bench.__file__, "--device", "cpu", "--quick", "--json", str(file), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    rows = {row["row"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    return result.returncode, rows, result.stdout


class BenchTest(unittest.TestCase):
    @support.long
    def test_every_row(self):
        has_compiler = shutil.which(os.environ.get("CXX", "c++")) is not None
        has_transformers = True
        try:
            support.needs("transformers")
        except unittest.SkipTest:
            has_transformers = False
        with tempfile.TemporaryDirectory() as folder:
            operator = Path(folder, "operator.so")
            status, rows, output = run(folder, "--operator", str(operator))
            self.assertEqual(status, 0, output)
            self.assertEqual(operator.exists(), has_compiler, output)
        self.assertEqual(set(rows), set(ROWS))
        for name, (beside, is_demanded) in ROWS.items():
            row = rows[name]
            with self.subTest(name):
                self.assertIn(beside, row["reference"])
                self.assertIn(f"| {row['entry']} | {row['shape']} | {row['measure']} |", output)
                missing = None
                if beside in OTHERS:
                    missing = "No module named|needs a GPU"
                elif name.endswith("graphs") or name.endswith("/graph"):
                    missing = "CUDA graphs need a GPU" if has_transformers else "No module named"
                elif name.startswith("llama/") and not has_transformers:
                    missing = "No module named"
                elif (beside == OPERATOR or name == "desc/numpy") and not has_compiler:
                    missing = "cannot be compiled"
                if missing is not None:
                    self.assertRegex(row["message"], f"not measured: .*({missing})")
                    self.assertIn(f"{name}: {row['message']}", output)
                    continue
                self.assertEqual(row["rounds"], 3)
                self.assertEqual("demanded" in row, is_demanded)
                for value in (row["us"], row["reference_us"], row["ratio_p10"]):
                    self.assertGreater(value, 0.0)
                self.assertLessEqual(row["ratio_p10"], row["ratio"])
                self.assertLessEqual(row["ratio"], row["ratio_p90"])
                # Every candidate was compared: results of rounded numbers are not exact.
                computing = [error for what, error in row["errors"].items() if what != "two empty_like"]
                self.assertEqual(len(computing), 2)
                for error in computing:
                    self.assertGreater(error, 0.0)
                    self.assertLess(error, 1e-2)

    def test_without_the_operator(self):
        with tempfile.TemporaryDirectory() as folder:
            status, rows, output = run(folder, "--only", "desc/in-place", "--only", "swiglu/torch")
            self.assertEqual(status, 0, output)
            self.assertEqual(rows["desc/in-place"]["message"], "not measured: it needs --operator")
            self.assertEqual(rows["swiglu/torch"]["rounds"], 3)
            file = Path(folder, "operator.so")
            for text, reason in (
                    ("no shared object", "is not the operator compiled against torch"),
                    ("rope_bench for torch 1.0.0;", "is not the operator compiled against torch"),
                    (f"rope_bench for torch {bench.TORCH_VERSION};", "cannot be loaded: ")):
                with self.subTest(text):
                    file.write_text(text)
                    with self.assertRaisesRegex(bench.NotHere, f"operator.so {reason}"):
                        bench.Bench("cpu", str(file)).operator

    def test_no_row_of_that_name(self):
        with tempfile.TemporaryDirectory() as folder:
            status, _, output = run(folder, "--only", "none/*")
            self.assertEqual(status, 2)
            self.assertEqual(set(output.split()), set(ROWS))

    def row(self, entry, *references):
        candidates = [bench.Candidate(f"{i}", lambda prepared=prepared: prepared, demanded)
                      for i, (prepared, demanded) in enumerate(references)]
        return bench.run("row", bench.Row("", bench.Candidate("entry", lambda: entry), candidates),
                         bench.Bench("cpu", is_quick=True))

    def test_wrong_results_are_not_measured(self):
        x = torch.randn(5, 7)
        right = bench.Prepared(lambda: x, lambda: [x.double()], 1e-6)
        for what, call in (
                ("value", lambda: x * 1.001), ("NaN", lambda: torch.where(x == x[0, 0], torch.nan, x)),
                ("shape", lambda: x[1:]), ("number", lambda: (x, x))):
            with self.subTest(what):
                for entry, reference in (
                        (right._replace(call=call), right), (right, right._replace(call=call))):
                    result = self.row(entry, (reference, 1.0))
                    self.assertRegex(result["message"], "^failed: RuntimeError: .*: wrong (result|shapes): ")
                    self.assertNotIn("us", result)

    def test_results_that_go_wrong_later_are_noticed(self):
        calls = []

        def call():
            calls.append(None)
            return x if len(calls) < 3 else -x

        x = torch.randn(5)
        right = bench.Prepared(lambda: x, lambda: [x.double()], 1e-6)
        self.assertRegex(self.row(right._replace(call=call), (right, 1.0))["message"], "wrong result")

    def test_ratios(self):
        """Times are given, in seconds."""
        nothing = bench.Prepared(lambda: None, None)

        def row(times, *demanded):
            with mock.patch.object(bench, "measure", lambda batches, row, _: times):
                return self.row(nothing, *((nothing, factor) for factor in demanded))

        one = row([[3e-6, 4e-6, 9e-6], [1e-6, 2e-6, 2e-6]], 2.5)
        for key, value in dict(us=4.0, reference_us=2.0, ratio=3.0, ratio_p10=2.0, ratio_p90=4.5, demanded=2.5).items():
            self.assertAlmostEqual(one[key], value, msg=key)
        self.assertTrue(bench.line_of(one).endswith("| 4.0 | 0 | 2.0 | 3.00 | 2.50 | NO |"), bench.line_of(one))
        two = row([[3e-6], [2e-6], [1e-6]], 1.5, 1.0)
        for key, value in dict(us=3.0, reference_us=3.0, ratio=1.0, demanded=4 / 3).items():
            self.assertAlmostEqual(two[key], value, msg=key)
        self.assertTrue(bench.line_of(two).endswith("| 1.00 | 1.33 | yes |"), bench.line_of(two))
        self.assertNotIn("demanded", row([[1e-6], [1e-6]], None))


if __name__ == "__main__":
    unittest.main()
