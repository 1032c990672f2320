#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes librope in one place after another, and counts how many of the changes the tests detect.

A mutant is one file with one operator, bound, constant, condition or statement changed. mutants.py finds the possible
changes of each line. The selection depends only on the seed and on the text of the line, so changes elsewhere do not
affect it. Each mutant is built beside the checkout and run against a quick part of the tests for its part of librope:

    python3 tests/mutation/mutate.py              src/core, src/plan and src/backend/cpu
    python3 tests/mutation/mutate.py api          src/api
    python3 tests/mutation/mutate.py cuda         the host half of src/backend/cuda; needs nvcc and a GPU
    python3 tests/mutation/mutate.py python       bindings/python, by this Python and the packages that it has
    python3 tests/mutation/mutate.py rust         bindings/rust; needs cargo
    python3 tests/mutation/mutate.py go           bindings/go; needs go and pkg-config

killed       a test failed, crashed, or took far longer than it does
survived     every test passed
same code    the compiler's output did not change; not counted
no compile   not counted

survivors.txt lists survivors with a reason: `equivalent` ones, which behave exactly as the library does, are not
counted; `unseen` ones are. The script fails if fewer than 95 % are killed or if a survivor is not explained.

It needs g++, CMake and Ninja, and no package of Python. Without AVX-512 the file for x86-64-v4 is left out. A mutant
takes 2 to 12 s of one processor. --count and --only select fewer mutants, --show prints them, --slow runs all tests
before a mutant counts as a survivor, --results continues an earlier run and tries its survivors again.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

from mutants import ROOT, mutants_of, python_code

EXPLAINED = pathlib.Path(__file__).with_name("survivors.txt")

# ---- Running ----


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def must(command, **options):
    result = run(command, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def cmake(directory, arguments, targets):
    must(["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", "-DROPE_BUILD_EXAMPLES=OFF", *arguments])
    must(["cmake", "--build", directory, "--parallel", str(os.cpu_count()), "--target", *targets])


def processor_seconds(group):
    """The processor time used by the processes of a group, including children that have ended."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # the process has just ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


FAILED_TEST = re.compile(r"^-{79}\n([^/\n].*)\n|^(?:FAIL|ERROR): (\S+)|^test (\S+) \.\.\. FAILED|--- FAIL: (\S+)", re.M)
ALL_SKIPPED = re.compile(r"^test cases: +(\d+) \| \1 skipped$|^0 passed, 0 failed, [1-9]", re.M)  # Catch2, run.py


class Judge:
    """Runs suites, in their order, until a test fails. A suite is too slow if it takes several times the processor
    time that it takes without a change."""

    memory = None
    patience = 4
    may_skip = True

    def __init__(self, suites):
        self.suites, self.seconds = suites, []

    def outcome(self, seconds, command, environment=None, directory=None):
        """("passed", "skipped" or "failed"; why, in words; the output)"""
        def limit():
            os.setpgrp()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            if self.memory is not None:
                resource.setrlimit(resource.RLIMIT_AS, (self.memory, self.memory))

        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace", env={**os.environ, **(environment or {})},
                                   preexec_fn=limit, cwd=directory)
        used = 0
        while True:
            try:
                output, _ = process.communicate(timeout=20)
                break
            # busy machines are slow; a call that waits forever uses no processor time
            except subprocess.TimeoutExpired:
                before, used = used, processor_seconds(process.pid)
                if used - before < 0.02:
                    os.killpg(process.pid, signal.SIGKILL)
                    return "failed", "hangs", process.communicate()[0]
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            return "failed", "too slow" if name in ("SIGXCPU", "SIGKILL") else name, output
        if process.returncode > 0 and not ALL_SKIPPED.search(output):
            names = ["".join(groups) for groups in FAILED_TEST.findall(output)]
            return "failed", names[-1] if names else "failed", output
        return "skipped" if process.returncode > 0 else "passed", "", output

    def measure(self, max_seconds):
        """Runs each suite without a change. Suites that are skipped here are left out, and so are those that would make
        the total exceed max_seconds."""
        kept, total = [], 0
        for suite in self.suites:
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
            outcome, why, output = self.outcome(1200, *self.command(suite))
            after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - began
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            name = " ".join(map(str, suite[:2]))[:100]
            if outcome == "failed" or (outcome == "skipped" and not self.may_skip):
                sys.exit(f"{name} is {outcome} without a change: {why}\n{output}")
            if outcome == "passed" and max_seconds is not None and total + took > max_seconds:
                outcome = "left out"
            print(f"{name}: {used:.1f} s, {took:.1f} s by the clock, {outcome}", flush=True)
            if outcome == "passed":
                total += took
                kept.append(suite)
                self.seconds.append(int(max(10, self.patience * used)))
        self.suites = kept
        if not kept:
            sys.exit("no suite runs here")

    def verdict(self, commands):
        """commands: the argument of `outcome` for each suite; None if there is no output."""
        for command, seconds in zip(commands, self.seconds):
            outcome, why, output = self.outcome(seconds, *command) if command else ("passed", "", "")
            if outcome == "failed":
                return ("no compile", "") if self.is_broken(output) else ("killed", why)
        return "survived", ""

    def is_broken(self, output):
        return False


# ---- src ----

UNIT, API = "rope_unit_tests", "rope_api_tests"
CUDA, CUDA_INTERNAL = "cuda/rope_cuda_tests", "cuda/rope_cuda_internal_tests"
MADE_OF_OBJECTS = (UNIT, CUDA_INTERNAL)  # the others load the library


class Library(Judge):
    """A mutant is compiled from the one file that it changes (for a header, from the files that include it) and linked
    with the other objects of one CMake build, with little optimisation, which saves time."""

    def __init__(self, options, directory, suites, cuda=False):
        super().__init__(suites)
        self.directory = directory
        # CUDA reserves addresses for all of the device's memory; a thread that waits for the device uses its processor
        if cuda:
            self.patience, self.may_skip = 4 * options.jobs, False
        else:
            self.memory = 8 << 30
        programs = sorted({program for program, *_ in suites})
        cmake(directory, ["-DROPE_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O2",
                          "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                          *(["-DROPE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90"] if cuda else ["-DROPE_CUDA=OFF"])],
              [program.split("/")[-1] for program in programs])
        self.commands = {}
        for entry in json.loads((directory / "compile_commands.json").read_text()):
            source = os.path.relpath(entry["file"], ROOT)
            if source.endswith(".cpp") and "rope_objects.dir" in entry["command"]:
                self.commands[source] = shlex.split(entry["command"])
        self.objects = {source: command[command.index("-o") + 1] for source, command in self.commands.items()}
        self.includes = {source: self.includes_of(source) for source in self.commands}
        self.links = {name: self.link_command("tests/" + name) for name in programs if name in MADE_OF_OBJECTS}
        self.link_library = self.link_command("librope.so")
        self.baseline = {}
        self.lock = threading.Lock()

    def includes_of(self, source):
        command = list(self.commands[source])
        at = command.index("-o")
        del command[at:at + 2]
        command[command.index("-c")] = "-MM"
        names = must(command, cwd=self.directory).replace("\\\n", " ").split()[1:]
        return {os.path.relpath(self.directory / name, ROOT) for name in names}

    def link_command(self, target):
        lines = must(["ninja", "-t", "commands", target], cwd=self.directory).split("\n")
        line = [line for line in lines if " -o " in line and " -c " not in line][-1]
        return shlex.split([part for part in line.split(" && ") if " -o " in part][0])

    def compile(self, source, scratch, overlay, mutated):
        """The object of `source` with the changed file in the overlay, or None."""
        command = [{"-O2": "-O1", "-O3": "-O1"}.get(part, part) for part in self.commands[source]]
        target = scratch / (source.replace("/", "_") + ".o")
        command[command.index("-o") + 1] = str(target)
        if source == mutated:
            at = command.index("-c")
            command[at + 1] = str(overlay / pathlib.Path(source).relative_to("src"))
        command[1:1] = ["-w", f"-I{overlay}"]
        return target if run(command, cwd=self.directory, timeout=300).returncode == 0 else None

    def original(self, source):
        """The object of the unchanged file, compiled in the same way."""
        with self.lock:
            if source not in self.baseline:
                scratch = self.directory / "original"
                copy = scratch / "overlay" / pathlib.Path(source).relative_to("src")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / source, copy)
                self.baseline[source] = self.compile(source, scratch, scratch / "overlay", source).read_bytes()
                copy.unlink()
            return self.baseline[source]

    def link(self, command, objects, target):
        replaced = {self.objects[source]: str(path) for source, path in objects.items()}
        command = [replaced.get(part, part) for part in command]
        command[command.index("-o") + 1] = str(target)
        must(command, cwd=self.directory)

    def command(self, suite, scratch=None):
        """The command of a suite without a change, or with the change linked in a folder."""
        program, environment = self.directory / "tests" / suite[0], None
        if scratch and suite[0] in MADE_OF_OBJECTS:
            program = scratch / program.name
        elif scratch:
            environment = {"LD_PRELOAD": str(scratch / "librope.so.0")}
        return [program, *suite[1], "--abort", "--order", "decl"], environment

    def judge(self, mutant, scratch):
        overlay = scratch / "overlay"
        shutil.rmtree(overlay, ignore_errors=True)
        changed = overlay / pathlib.Path(mutant.file).relative_to("src")
        changed.parent.mkdir(parents=True)
        changed.write_text(mutant.text())
        objects = {}
        for source in [source for source in self.commands if mutant.file in self.includes[source]]:
            compiled = self.compile(source, scratch, overlay, mutant.file)
            if compiled is None:
                return "no compile", ""
            if compiled.read_bytes() != self.original(source):
                objects[source] = compiled
        if not objects:
            return "same code", ""
        self.link(self.link_library, objects, scratch / "librope.so.0")
        # A test that links objects compiles headers itself: then only the library is changed, and API tests decide.
        links = {} if mutant.file.endswith(".hpp") else self.links
        for name, link in links.items():
            self.link(link, objects, scratch / pathlib.Path(name).name)
        return self.verdict([self.command(suite, scratch) if re.search(suite[2], mutant.file) and
                             (suite[0] in links or suite[0] not in MADE_OF_OBJECTS) else None for suite in self.suites])


# ---- bindings ----

class Binding(Judge):
    """A mutant is a change in a copy of the binding's folder, beside links to all files that its tests read. The
    tests compile it themselves, and report `broken` if that fails."""

    def __init__(self, options, directory, suites, folder, environment, broken="(?!)"):
        super().__init__(suites)
        self.folder, self.broken, self.scratch, self.trees = folder, broken, directory / "unchanged", {}
        cmake(directory, ["-DROPE_CUDA=OFF"], ["all"])
        prefix = directory / "prefix"
        must(["cmake", "--install", directory, "--prefix", prefix])
        self.environment = {name: value.format(build=directory, prefix=prefix) for name, value in environment.items()}

    def tree(self, scratch):
        """A folder like the repository's, in which only the binding is a copy."""
        if scratch not in self.trees:
            tree = self.trees[scratch] = scratch / "tree"
            shutil.rmtree(tree, ignore_errors=True)
            (tree / self.folder).parent.mkdir(parents=True)
            for path in ROOT.iterdir():
                if path.name != "bindings" and not path.name.startswith((".", "build")):
                    (tree / path.name).symlink_to(path)
            shutil.copytree(ROOT / self.folder, tree / self.folder, symlinks=True, copy_function=shutil.copyfile,
                            ignore=shutil.ignore_patterns("target", "__pycache__", "build"))
        return self.trees[scratch]

    def command(self, suite, scratch=None):
        tree = self.tree(scratch or self.scratch)
        environment = {**self.environment, "CARGO_TARGET_DIR": str(tree / "target")}
        return [*suite[0], *suite[1]], environment, tree / self.folder

    def is_broken(self, output):
        return re.search(self.broken, output) is not None

    def judge(self, mutant, scratch):
        original, changed = (ROOT / mutant.file).read_text(), mutant.text()
        if mutant.file.endswith(".py"):
            code = python_code(changed)
            if code is None or code == python_code(original):
                return "no compile" if code is None else "same code", ""
        file = self.tree(scratch) / mutant.file
        file.write_text(changed)
        try:
            return self.verdict([self.command(suite, scratch) if re.search(suite[2], mutant.file) else None
                                 for suite in self.suites])
        finally:
            file.write_text(original)  # written again, because cargo compares times


# ---- The files that are changed, and the tests that decide ----

def quoted(names):
    return [name.replace(",", "\\,") for name in names]


SLOW_PLANS = quoted(["a launch does each piece*", "a launch of odd sizes*", "launches without a barrier do each piece*",
                     "rows of threads do each piece*", "heads that are converted in place*",
                     "long launches do each piece*"])
QUICK_CALLS = "[errors],[bounds],[golden],[determinism],[scaling],[sections],[properties],[positions],[explain]"
MORE_CALLS = quoted([
    "random requests, part 1*", "every dtype, rank and width, separate tensors", "gradients in place*",
    "each output over each input", "one gradient alone", "strides of each tensor", "NaN and infinite inputs of SwiGLU",
    "infinite inputs show*", "products of large and small factors", "alpha 1 and out_scale 1*",
    "a form or a row_scale with extreme*", "num_rows of a tensor of one axis*", "row_scale, its gradient and num_rows*",
    "the gradient of row_scale alone*", "the sum of a row loses nothing*", "row sums do not depend*",
    "empty tensors*", "numbers of an F64 form*", "gates from one end of sigmoid to the other"])
# (program, arguments, optional pattern of file paths). The suites of a file take at most 20 s of one processor; most
# mutants are killed in the first two seconds.
CALL_SUITES = [
    (API, [QUICK_CALLS], ""),
    (API, ['[fault]~"a wrong entry is counted once*",[fill tables]~*large*,[f64],[angles]'], ""),
    (API, [",".join(MORE_CALLS)], ""),
]
PARTS = {
    "library": {
        # Numbers in tuning.hpp are measurements: other numbers are slower, but not wrong. Headers that are left out
        # have nothing to change.
        "files": ["src/core/*/*.cpp", "src/core/math/float16.hpp", "src/core/math/float8.hpp",
                  "src/core/math/gating.hpp", "src/core/math/gating_options.hpp",
                  "src/core/math/rotation.hpp", "src/core/problem/operands.hpp",
                  "src/core/problem/overlap.hpp", "src/core/problem/rope_geometry.hpp",
                  "src/core/problem/rope_problem.hpp", "src/core/problem/swiglu_problem.hpp",
                  "src/core/problem/swiglu_rows.hpp", "src/core/problem/table_problem.hpp",
                  "src/core/problem/written_scales.hpp",
                  "src/core/problem/view.hpp", "src/plan/*.cpp", "src/plan/launch_shape.hpp", "src/backend/cpu/*.cpp",
                  "src/backend/cpu/cpu_gating.hpp", "src/backend/cpu/cpu_kernels.hpp", "src/backend/cpu/cpu_loops.hpp",
                  "src/backend/cpu/cpu_norm.hpp", "src/backend/cpu/cpu_norm_gradient_loops.hpp",
                  "src/backend/cpu/cpu_norm_gradient_vectors.hpp", "src/backend/cpu/cpu_step_codes.hpp",
                  "src/backend/cpu/cpu_step_floats.hpp", "src/backend/cpu/cpu_step_loops.hpp",
                  "src/backend/cpu/cpu_step_rows.hpp", "src/backend/cpu/cpu_step_slices.hpp",
                  "src/backend/cpu/cpu_step_vectors.hpp", "src/backend/cpu/cpu_swiglu_loops.hpp",
                  "src/backend/cpu/cpu_swiglu_walk.hpp", "src/backend/cpu/cpu_tokens.hpp",
                  "src/backend/cpu/cpu_vectors.hpp", "src/backend/cpu/cpu_windows.hpp", "src/backend/cpu/raise_amax.hpp",
                  "src/backend/cpu/task_range.hpp"],
        "judge": Library,
        "suites": [
            (UNIT, ["[views],[rope problem],[swiglu problem],[import],[frequencies]"], "src/core/"),
            (UNIT, ["[gating]"], "src/core/math/gating"),
            (UNIT, ["[rope plan]", *("~" + name for name in SLOW_PLANS)], "src/plan/"),
            (UNIT, ["[swiglu plan]"], "src/plan/"),
            (UNIT, ["[step plan]"], "src/plan/step_"),
            (UNIT, ["[device info]"], "src/plan/device_info"),
            *CALL_SUITES,
            (API, ["[step]"], "(core|cpu)/.*step"),
            (API, ["[gradient]"], "norm_gradient"),
            (API, ['[quant]~"every launch that codes*"'], "float8|cpu_loops"),
            (API, ["[gates]"], "gating|swiglu"),
            (API, ["[codes]~[threads]"], "float8|swiglu_codes|swiglu_problem|cpu_swiglu|written_scales|raise_amax"),
            (API, ["[rows]~[codes]"], "swiglu_rows"),
            (UNIT, ["[cpu kernels],[thread pool],[processors]"], "src/backend/cpu"),
        ],
        # Additional suites for --slow: with them, all tests of both programs run.
        "slow_suites": [
            (UNIT, [",".join(SLOW_PLANS)], "src/plan/"),
            (API, [*("~" + tag for tag in QUICK_CALLS.split(",")), *("~" + name for name in MORE_CALLS)], ""),
        ],
    },
    "api": {
        "files": ["src/api/*.cpp", "src/api/*.hpp"],
        "judge": Library,
        "suites": [(API, ["[lifecycle],[views]"], ""), *CALL_SUITES],
        "slow_suites": [(API, ["[stress]"], "")],
    },
    "cuda": {
        "files": ["src/backend/cuda/cuda_backend.cpp", "src/backend/cuda/*_operation.cpp",
                  "src/backend/cuda/device_cache.*", "src/backend/cuda/kernel_cache.*", "src/backend/cuda/launch.*"],
        "judge": Library,
        "cuda": True,
        "max_seconds": 15,
        # Several run at once on one device: tests that use all of its memory, or measure what is free, are left out.
        "suites": [
            (API, ["[golden],[lifecycle]~[threads]"], ""),
            (API, [",".join(MORE_CALLS)], ""),
            (UNIT, ["[no_device]"], "device_cache"),
            (API, ['[fault]~"a wrong entry is counted once*",[fill tables]~*large*,[angles],[sections],[positions]'], ""),
            (API, ["long launches by F32 tables*,long launches of several batches"], ""),
            (CUDA, ['[survival]~"*device\'s memory"~"*device memory*",[devices]~"*device memory"'], ""),
            (CUDA_INTERNAL, ["[errors],[grid]"], ""),
            (CUDA, ["[graphs]~[survival]~[devices]"], ""),
            (CUDA, ["[programmatic]"], ""),
            (CUDA, ["[streams]~[concurrent]"], ""),
        ],
    },
    "python": {
        "files": ["bindings/python/librope/*.py"],
        "judge": Binding,
        "folder": "bindings/python",
        "environment": {"ROPE_LIBRARY": "{build}/librope.so", "PYTHONDONTWRITEBYTECODE": "1"},
        "suites": [([sys.executable, "tests/run.py"], names, files) for names, files in (
            (["test_numpy", "test_protocols", "test_frequencies", "test_integers", "test_abi", "test_loader"], ""),
            (["test_kept"], "_kept|_descriptor"),
            (["test_torch"], "torch|_tensors|_rope|_swiglu|_descriptor"),
            (["test_modules"], "_torch_modules"),
            (["test_transformers"], "transformers|_torch_scaled|_hf_config|_enums"),
            (["test_hf_configs"], "_hf_config"),
            (["test_jax"], "_tensors|_dlpack"))],
    },
    "rust": {
        "files": ["bindings/rust/rope/src/*.rs", "bindings/rust/rope-sys/src/*.rs"],
        "judge": Binding,
        "folder": "bindings/rust",
        "environment": {"ROPE_LIB_DIR": "{build}", "CARGO_TERM_COLOR": "never"},
        "suites": [(["cargo", "test", "--offline", "--locked", "--tests"], [], "")],
        "broken": "could not compile",
    },
    "go": {
        "files": [f"bindings/go/{name}" for name in ("frequencies.go", "rope.go", "shim.h", "swiglu.go", "tensor.go")],
        "judge": Binding,
        "folder": "bindings/go",
        "environment": {"PKG_CONFIG_PATH": "{prefix}/lib/pkgconfig", "LD_LIBRARY_PATH": "{prefix}/lib",
                        "GOCACHE": "{build}/go-cache", "GOPATH": "{build}/go-path", "GOFLAGS": "-mod=mod",
                        "GOPROXY": "off"},
        "suites": [(["go", "test", "-count=1", "-vet=off", "./..."], [], "")],
        "broken": r"\[(build|setup) failed\]",
    },
}


# ---- The run ----

def read_explained():
    """The kind, `equivalent` or `unseen`, and the reason of each survivor that survivors.txt explains."""
    entries = {}
    for line in EXPLAINED.read_text().split("\n"):
        parts = line.split("\t")
        if not line.startswith("#") and len(parts) == 3:
            entries[parts[1]] = (parts[0], parts[2])
    return entries


def read_results(path):
    """The result of each mutant in the output of an earlier run."""
    text = path.read_text() if path and path.exists() else ""
    return {key: result for result, key in
            re.findall(r"^(killed|survived|same code|no compile) +(.* \| [^\t\n]*)", text, re.M)}


def runs_here(file):
    needs_avx512 = file == "src/backend/cpu/cpu_gating.hpp"
    return not needs_avx512 or " avx512bw " in pathlib.Path("/proc/cpuinfo").read_text()


def report(mutants, results, explained):
    """Prints the results of each file's mutants; returns whether enough are killed and the others are explained."""
    counts = dict.fromkeys(("killed", "same code", "no compile", "equivalent", "unseen", "unexplained", "left"), 0)
    by_file = {}
    for mutant in mutants:
        result = results.get(mutant.key(), "left")
        if result in ("killed", "survived"):
            by_file.setdefault(mutant.file, []).append(result == "killed")
        if result == "survived":
            result = explained.get(mutant.key(), ("unexplained", ""))[0]
        counts[result] += 1
    print()
    for file, killed in sorted(by_file.items()):
        print(f"{file}: {sum(killed)} of {len(killed)} killed")
    different = counts["killed"] + counts["unseen"] + counts["unexplained"]
    share = 100 * counts["killed"] / max(different, 1)
    print(f"\n{counts['killed']} of {different} mutants killed, {share:.1f} %; {counts['unexplained']} of the others "
          f"are not explained. Not counted: {counts['equivalent']} equivalent ones, {counts['same code']} of the same "
          f"code, {counts['no compile']} that do not compile, {counts['left']} that are left to try.")
    return counts["unexplained"] == 0 and share >= 95


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="?", default="library", choices=PARTS, help="part of librope that is changed")
    parser.add_argument("--build", help="folder to build in; build-mutation-PART if not given")
    parser.add_argument("--count", type=int, default=400, help="mutants to try")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--show", action="store_true", help="print the mutants and leave")
    parser.add_argument("--slow", action="store_true", help="run the slow tests too, before something survives")
    parser.add_argument("--results", type=pathlib.Path, help="file to add results to; what it has is not tried again, "
                        "but for survivors")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many minutes")
    options = parser.parse_args()

    part = dict(PARTS[options.part])
    judge_class, patterns = part.pop("judge"), part.pop("files")
    slow_suites, max_seconds = part.pop("slow_suites", []), part.pop("max_seconds", None)
    if options.slow:
        part["suites"] = part["suites"] + slow_suites
    files = [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    files = [file for file in files if options.only in file and runs_here(file)]
    mutants = mutants_of(files)
    possible = len(mutants)
    explained = read_explained()
    keys = {mutant.key() for mutant in mutants}
    gone = [key for key in explained if key.split(" | ")[0] in files and key not in keys]
    if gone:
        sys.exit("survivors.txt explains what can no longer be changed:\n" + "\n".join(gone))
    mutants = sorted(mutants, key=lambda mutant: mutant.order(options.seed))[:options.count]
    if options.show:
        for mutant in mutants:
            print(mutant.key())
        print(f"{len(mutants)} of {possible} mutants")
        return

    began = time.time()
    directory = pathlib.Path(options.build or f"build-mutation-{options.part}").resolve()
    judge = judge_class(options, directory, **part)
    judge.measure(max_seconds)
    print(f"built in {time.time() - began:.0f} s", flush=True)

    results = read_results(options.results)
    free = [directory / f"job{i}" for i in range(options.jobs)]
    lock = threading.Lock()

    def work(mutant):
        if results.get(mutant.key(), "survived") != "survived" or time.time() - began > 60 * options.minutes:
            return
        with lock:
            scratch = free.pop()
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            result, why = judge.judge(mutant, scratch)
        finally:
            with lock:
                free.append(scratch)
        if result == "survived":
            why = ": ".join(explained.get(mutant.key(), ("unexplained", "no test notices")))
        line = f"{result:11}{mutant.key()}" + (f"\t({why})" if why else "")
        with lock:
            results[mutant.key()] = result
            print(line, flush=True)
            if options.results:
                with options.results.open("a") as file:
                    print(line, file=file)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, mutants))
    is_good = report(mutants, results, explained)
    print(f"{possible} mutants are possible. {(time.time() - began) / 60:.0f} minutes.")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
