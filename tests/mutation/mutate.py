#!/usr/bin/env python3
"""Changes the library in one place after another, and counts how many of the changes the tests notice.

A mutant is src/core, src/plan or src/backend/cpu with one operator, bound, constant or statement changed. What can be
changed is found by reading the lines; which of it is, depends on the seed and on the line's own text, so that work
elsewhere leaves the choice alone. Each mutant is compiled from the one file that it changes (for a header, from the
files that include it), linked with the other objects, and run against a quick part of the unit and API tests.

killed       a test failed, crashed, or took far longer than it does
survived     every test passed
same code    the compiler made the same objects of it; not counted
no compile   not counted

    python3 tests/mutation/mutate.py

Survivors stand in survivors.txt with the reason: `equivalent` ones, which nobody can tell from the library, are not
counted; `unseen` ones are. It fails where fewer than 95 in a hundred are killed or a survivor is not explained.

Needs g++, CMake and Ninja, and no package of Python. Without AVX-512 the file that only x86-64-v4 runs is left out. A
mutant takes some 12 s of one processor. --count and --only take fewer, --show prints them, --slow runs all tests
before something survives.
"""
import argparse
import concurrent.futures
import hashlib
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPLAINED = pathlib.Path(__file__).with_name("survivors.txt")

# What is changed. Numbers in tuning.hpp are measurements: other ones are slower, not wrong. Headers that are left out
# have nothing to change.
FILES = [
    "src/core/*.cpp",
    "src/core/float16.hpp",
    "src/core/gating.hpp",
    "src/core/rotation.hpp",
    "src/core/rope_geometry.hpp",
    "src/core/rope_problem.hpp",
    "src/core/swiglu_problem.hpp",
    "src/core/view.hpp",
    "src/plan/*.cpp",
    "src/plan/launch_shape.hpp",
    "src/backend/cpu/*.cpp",
    "src/backend/cpu/cpu_gating.hpp",
    "src/backend/cpu/cpu_kernels.hpp",
    "src/backend/cpu/cpu_loops.hpp",
    "src/backend/cpu/cpu_vectors.hpp",
    "src/backend/cpu/task_range.hpp",
]

# The tests, in the order in which they are run; the first failure ends it. (program, arguments, only for files whose
# path has this.) Those of a file take at most 20 s of one processor, and most mutants die in the first two seconds.
UNIT, API = "rope_unit_tests", "rope_api_tests"


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
SUITES = [
    (UNIT, ["[views],[rope problem],[swiglu problem],[import],[frequencies]"], "src/core/"),
    (UNIT, ["[rope plan]", *("~" + name for name in SLOW_PLANS)], "src/plan/"),
    (UNIT, ["[swiglu plan]"], "src/plan/"),
    (API, [QUICK_CALLS], ""),
    (API, ["[fault],[fill tables],[f64],[angles]", "~a wrong entry is counted once*", "~*large*"], ""),
    (API, [",".join(MORE_CALLS)], ""),
    (UNIT, ["[cpu kernels],[thread pool]"], "src/backend/cpu"),
]
# With --slow also these: with them it is all of both programs.
SLOW_SUITES = [
    (UNIT, [",".join(SLOW_PLANS)], "src/plan/"),
    (API, [*("~" + tag for tag in QUICK_CALLS.split(",")), *("~" + name for name in MORE_CALLS)], ""),
]


# ---- What can be changed ----

SWAPS = {
    "<": ["<=", ">"], "<=": ["<", ">"], ">": [">=", "<"], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
    "+": ["-"], "-": ["+"], "*": ["+"], "/": ["*"], "%": ["/"], "&": ["|"], "|": ["&"], "<<": [">>"], ">>": ["<<"],
    "&&": ["||"], "||": ["&&"], "+=": ["-="], "-=": ["+="], "|=": ["&="], "&=": ["|="], "/=": ["*="], "*=": ["+="],
    ">>=": ["<<="],
}
OTHER_WORD = {"true": "false", "false": "true", "continue": "break"}
OPERATOR = re.compile(r"(?<= )(" + "|".join(sorted(map(re.escape, SWAPS), key=len, reverse=True)) + r")(?= )")
INTEGER = re.compile(r"(?<![\w.'])(\d+)(?=u?(?![\w.']))")
HEX_INTEGER = re.compile(r"(?<![\w.])0x([0-9a-f]+)(?=u?(?![\w.]))")
REAL = re.compile(r"(?<![\w.])(0x[0-9a-f]+(?:\.[0-9a-f]+)?p|\d+\.\d+)(?=[\w+-]*)")
WORD = re.compile(r"\b(true|false|continue)\b")
NOT = re.compile(r"(?<![\w)])!(?=[A-Za-z_(])")
STEP = re.compile(r"(\+\+|--)(?=\w)")
IF = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\) (?:return .*;|continue;|break;|\{|[\w\[\].>-]+ [-+|]?= .*;))$")
STATEMENT = re.compile(r"^\s*(?!return\b|const\b|constexpr\b|using\b|static\b|else\b|case\b|default\b|[a-z_]\w*_t \w|"
                       r"(?:bool|int|float|double|char|View|Real) \w)"
                       r"(?:ROPE_TRY\(.*\);|[a-z_][\w.>\-\[\]]*\(.*\);|\*?[a-z_][\w.>\-\[\]]*(?:\(\))? [-+|&/*]?= .*;|"
                       r"(?:\+\+|--)[\w.>\-]+;)$")


def blank(match):
    return re.sub(r"[^\n]", "\0", match.group(0))


def code_lines(text):
    """The lines with comments, strings and characters blanked out, and '' for those that hold no code to change."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if re.match(r"\s*(#|static_assert|template|namespace|using|asm\(|ROPE_INDEPENDENT)", line):
            lines[i] = ""
    return lines


def other_digit(digits):
    """The literal with a digit in its middle changed: 1.4142 is 1.5142."""
    places = [i for i, c in enumerate(digits) if c in "0123456789abcdef" and not digits.startswith("0x", max(i - 1, 0))]
    if digits.startswith("0x"):
        places = [i for i in places if i >= 2]
    at = places[len(places) // 2]
    bases = "0123456789abcdef" if digits.startswith("0x") else "0123456789"
    return digits[:at] + bases[(bases.index(digits[at]) + 1) % len(bases)] + digits[at + 1:]


def mutants_of_line(line):
    """(column, length, replacement) for each change of one line of code."""
    for match in OPERATOR.finditer(line):
        for other in SWAPS[match.group(1)]:
            yield match.start(), len(match.group(1)), other
    for match in INTEGER.finditer(line):
        value = int(match.group(1))
        yield match.start(), len(match.group(1)), str(value + 1)
        if value > 0:
            yield match.start(), len(match.group(1)), str(value - 1)
    for pattern in (HEX_INTEGER, REAL):
        for match in pattern.finditer(line):
            text = match.group(0)
            yield match.start(), len(text), other_digit(text)
    for match in WORD.finditer(line):
        yield match.start(), len(match.group(1)), OTHER_WORD[match.group(1)]
    for match in NOT.finditer(line):
        yield match.start(), 1, ""
    for match in STEP.finditer(line):
        yield match.start(), 2, "--" if match.group(1) == "++" else "++"
    match = IF.match(line)
    if match:
        yield match.start(2), len(match.group(2)), "!(" + match.group(2) + ")"
    if STATEMENT.match(line):
        begin = len(line) - len(line.lstrip())
        yield begin, len(line) - begin, ";"


class Mutant:
    def __init__(self, file, number, line, column, length, replacement):
        self.file, self.number, self.line = file, number, line
        self.column, self.length = column, length
        self.changed = line[:column] + replacement.replace("\0", "?") + line[column + length:]
        if "\0" in replacement:  # a condition with a string in it
            self.changed = line[:column] + "!(" + line[column:column + length] + ")" + line[column + length:]

    def key(self):
        return f"{self.file} | {self.line.strip()} | {self.changed.strip()}"

    def order(self, seed):
        return hashlib.sha256(f"{seed} {self.key()}".encode()).hexdigest()


def runs_here(file):
    needs_avx512 = file == "src/backend/cpu/cpu_gating.hpp"
    return not needs_avx512 or " avx512bw " in pathlib.Path("/proc/cpuinfo").read_text()


def all_mutants():
    mutants, seen = [], {}
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text()
            name = str(path.relative_to(ROOT))
            if not runs_here(name):
                continue
            lines = text.split("\n")
            for number, code in enumerate(code_lines(text)):
                for column, length, replacement in mutants_of_line(code):
                    mutant = Mutant(name, number + 1, lines[number], column, length, replacement)
                    if mutant.key() in seen:  # the same line elsewhere in the file: one of them will do
                        continue
                    seen[mutant.key()] = True
                    mutants.append(mutant)
    return mutants


# ---- Building and running ----

def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def must(command, **options):
    result = run(command, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


class Build:
    """One CMake build of the library and its tests, without optimisation that takes long and finds nothing."""

    def __init__(self, directory, name):
        self.directory = pathlib.Path(directory).resolve()
        self.scratch = self.directory / name
        must(["cmake", "-S", str(ROOT), "-B", str(self.directory), "-G", "Ninja", "-DROPE_CUDA=OFF",
              "-DROPE_BUILD_TESTS=ON", "-DROPE_BUILD_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O2",
              "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"])
        must(["cmake", "--build", str(self.directory), "--target", UNIT, API])
        self.commands = {}
        for entry in json.loads((self.directory / "compile_commands.json").read_text()):
            source = os.path.relpath(entry["file"], ROOT)
            if "/rope_objects.dir/" in entry["output"] if "output" in entry else "rope_objects.dir" in entry["command"]:
                self.commands[source] = shlex.split(entry["command"])
        self.objects = {source: command[command.index("-o") + 1] for source, command in self.commands.items()}
        self.includes = {source: self.includes_of(source) for source in self.commands}
        self.link_unit = self.link_command(UNIT)
        self.link_library = self.link_command("librope.so.0.1.0", "librope.so")
        self.baseline = {}
        self.lock = threading.Lock()

    def includes_of(self, source):
        command = [part for part in self.commands[source]]
        at = command.index("-o")
        del command[at:at + 2]
        command.remove("-c")
        text = must(command + ["-MM"], cwd=self.directory)
        names = text.replace("\\\n", " ").split()[1:]
        return {os.path.relpath(self.directory / name, ROOT) for name in names}

    def link_command(self, *targets):
        for target in targets:
            result = run(["ninja", "-t", "commands", target], cwd=self.directory)
            if result.returncode != 0:
                result = run(["ninja", "-t", "commands", "tests/" + target], cwd=self.directory)
            if result.returncode == 0:
                for line in reversed(result.stdout.strip().split("\n")):
                    if " -o " in line and " -c " not in line:
                        part = [p for p in line.split(" && ") if " -o " in p][0]
                        return shlex.split(part)
        sys.exit(f"no command links {targets}")

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
        """The same of the unchanged file, compiled in the same way."""
        with self.lock:
            if source not in self.baseline:
                scratch = self.scratch / "original"
                overlay = scratch / "overlay"
                copy = overlay / pathlib.Path(source).relative_to("src")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / source, copy)
                self.baseline[source] = self.compile(source, scratch, overlay, source).read_bytes()
                copy.unlink()
            return self.baseline[source]

    def link(self, command, objects, target):
        replaced = {self.objects[source]: str(path) for source, path in objects.items()}
        command = [replaced.get(part, part) for part in command]
        command[command.index("-o") + 1] = str(target)
        must(command, cwd=self.directory)

    def program(self, name):
        return self.directory / "tests" / name


def passes(program, arguments, environment, processor_seconds):
    """Whether all tests pass, in how much time of a processor, and in words why not."""
    def limit():
        os.setpgrp()
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds))

    def used(process):
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    process = subprocess.Popen([str(program), *arguments, "--abort", "--order", "decl"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", env={**os.environ, **environment},
                               preexec_fn=limit)
    seconds = 0
    while True:
        try:
            output, _ = process.communicate(timeout=20)
            break
        except subprocess.TimeoutExpired:  # busy machines are slow; a call that waits for ever does nothing
            before, seconds = seconds, used(process)
            if seconds - before < 0.02:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return False, "hangs"
    if process.returncode == 0:
        return True, ""
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return False, "too slow" if name in ("SIGXCPU", "SIGKILL") else name
    names = re.findall(r"^-{79}\n(.*)\n", output, flags=re.M)
    return False, names[0] if names else "failed"


def judge(build, mutant, scratch, seconds):
    overlay = scratch / "overlay"
    shutil.rmtree(overlay, ignore_errors=True)
    changed = overlay / pathlib.Path(mutant.file).relative_to("src")
    changed.parent.mkdir(parents=True)
    lines = (ROOT / mutant.file).read_text().split("\n")
    lines[mutant.number - 1] = mutant.changed
    changed.write_text("\n".join(lines))
    is_header = mutant.file.endswith(".hpp")
    sources = [source for source in build.commands if mutant.file in build.includes[source]]
    objects = {}
    for source in sources:
        compiled = build.compile(source, scratch, overlay, mutant.file)
        if compiled is None:
            return "no compile", ""
        if compiled.read_bytes() != build.original(source):
            objects[source] = compiled
    if not objects:
        return "same code", ""
    library, unit = scratch / "librope.so.0", scratch / UNIT
    build.link(build.link_library, objects, library)
    # A unit test compiles headers itself: there the library alone is changed, and API tests judge.
    if not is_header:
        build.link(build.link_unit, objects, unit)
    for index, (program, arguments, folder) in enumerate(SUITES):
        if folder not in mutant.file or (is_header and program == UNIT):
            continue
        path, environment = (unit, {}) if program == UNIT else (build.program(API), {"LD_PRELOAD": str(library)})
        passed, why = passes(path, arguments, environment, seconds[index])
        if not passed:
            return "killed", why
    return "survived", ""


def read_explained():
    """The kind, `equivalent` or `unseen`, and the reason of each survivor that survivors.txt explains."""
    entries = {}
    for line in EXPLAINED.read_text().split("\n"):
        parts = line.split("\t")
        if not line.startswith("#") and len(parts) == 3:
            entries[parts[1]] = (parts[0], parts[2])
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build-mutation", help="folder to build in")
    parser.add_argument("--count", type=int, default=400, help="mutants to try")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the mutants, for several runs at once")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--show", action="store_true", help="print the mutants and leave")
    parser.add_argument("--survivors-of", help="try again what survived, as this output of an earlier run says")
    parser.add_argument("--slow", action="store_true", help="run the slow tests too, before something survives")
    options = parser.parse_args()
    if options.slow:
        SUITES.extend(SLOW_SUITES)

    mutants = [mutant for mutant in all_mutants() if options.only in mutant.file]
    possible = len(mutants)
    mutants.sort(key=lambda mutant: mutant.order(options.seed))
    if options.survivors_of:
        text = pathlib.Path(options.survivors_of).read_text()
        wanted = set(re.findall(r"^survived  (.*) \((?:unexplained|unseen|equivalent)[^|]*\)$", text, re.M))
        mutants = [mutant for mutant in mutants if mutant.key() in wanted]
    part, parts = map(int, options.part.split("/"))
    mutants = mutants[:options.count][part - 1::parts]
    if options.show:
        for mutant in mutants:
            print(mutant.key())
        print(f"{len(mutants)} of {possible} mutants")
        return

    began = time.time()
    build = Build(options.build, f"part{part}")
    seconds = []
    for program, arguments, _ in SUITES:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        passed, why = passes(build.program(program), arguments, {}, 600)
        if not passed:
            sys.exit(f"{program} fails without a change: {why}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        seconds.append(int(max(10, 4 * used)))
        print(f"{program} {arguments[0]}: {used:.1f} s", flush=True)
    print(f"built in {time.time() - began:.0f} s", flush=True)

    explained = read_explained()
    free = [build.scratch / f"job{i}" for i in range(options.jobs)]
    lock = threading.Lock()
    outcome = {"killed": 0, "survived": 0, "same code": 0, "no compile": 0, "equivalent": 0, "unseen": 0,
               "unexplained": 0}
    by_file = {}

    def work(mutant):
        with lock:
            scratch = free.pop()
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            result, why = judge(build, mutant, scratch, seconds)
        finally:
            with lock:
                free.append(scratch)
        with lock:
            outcome[result] += 1
            counts = by_file.setdefault(mutant.file, {"killed": 0, "survived": 0})
            if result in counts:
                counts[result] += 1
            if result == "survived":
                kind, reason = explained.get(mutant.key(), ("unexplained", "no test notices"))
                outcome[kind] += 1
                why = f"{kind}: {reason}"
            print(f"{result:10}{mutant.key()}" + (f" ({why})" if why else ""), flush=True)

    (build.scratch / "original").mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, mutants))

    print()
    for file, counts in sorted(by_file.items()):
        total = counts["killed"] + counts["survived"]
        print(f"{file}: {counts['killed']} of {total} killed")
    different = outcome["killed"] + outcome["unseen"] + outcome["unexplained"]
    share = 100 * outcome["killed"] / max(different, 1)
    print(f"\n{outcome['killed']} of {different} mutants killed, {share:.1f} %; "
          f"{outcome['unexplained']} of the others are not explained. Not counted: {outcome['equivalent']} equivalent "
          f"ones, {outcome['same code']} of the same code, {outcome['no compile']} that do not compile. "
          f"{possible} mutants are possible. {(time.time() - began) / 60:.0f} minutes.")
    sys.exit(1 if outcome["unexplained"] or share < 95 else 0)


if __name__ == "__main__":
    main()
