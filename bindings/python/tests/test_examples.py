# SPDX-License-Identifier: Apache-2.0
# test_examples.py - runs the programs in examples/; each checks its own results and exits with 77 if it cannot run
from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

import support

import librope

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SKIPPED = 77


class ExamplesTest(unittest.TestCase):
    def run_example(self, name, *arguments, launcher=()):
        result = subprocess.run([sys.executable, *launcher, str(EXAMPLES / name), *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode == SKIPPED:
            self.skipTest(result.stdout.strip())
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_rotate_in_place(self):
        self.assertIn("in place and back", self.run_example("rotate_in_place.py"))

    def test_packed_qkv(self):
        self.assertIn("in one packed tensor", self.run_example("packed_qkv.py"))

    def test_training_step(self):
        self.assertIn("plain torch", self.run_example("training_step.py"))

    def test_two_processes_on_the_cpu(self):
        self.assertEqual(self.run_example("multi_gpu.py", "--cpu").count("2 ranks equal one device"), 6)

    def run_under_torchrun(self, ranks, *arguments):
        support.needs("torch.distributed.run")
        launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)
        output = self.run_example("multi_gpu.py", *arguments, launcher=launcher)
        self.assertEqual(output.count(f"{ranks} ranks equal one device"), 6)

    def test_under_torchrun_on_the_cpu(self):
        self.run_under_torchrun(4, "--cpu")

    def test_under_torchrun(self):
        if librope.device_count("cuda") < 2:  # torchrun does not return an exit status of 77
            self.skipTest("needs 2 GPUs")
        self.run_under_torchrun(2)

    def test_two_gpus(self):
        self.assertEqual(self.run_example("multi_gpu.py").count("2 ranks equal one device"), 6)

    def test_none_is_forgotten(self):
        text = Path(__file__).read_text() + Path(__file__).with_name("CMakeLists.txt").read_text()
        for path in EXAMPLES.glob("*.py"):
            self.assertIn(path.name, text)


if __name__ == "__main__":
    unittest.main()
