#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comments and pages of the repository avoid phrases that readers stumble over.

usage: words.py [FILE...]

Checks the comments of sources and scripts, the titles of C++ tests, the docstrings of Python and the prose of *.md
files, or only those of the given files. PHRASES has each phrase with the wording to use instead. Fails with one line
for each phrase found."""
import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".git", ".deps", "target", "corpus", "__pycache__", "results"}

# A sentence begins with a comment, or behind a full stop or semicolon.
BEGIN = r"(?:^|(?<=[.;?] ))"

# regular expression: advice
PHRASES = {
    r"\b(?:nobody|somebody|everybody|anybody)\b": "name the caller, thread or function",
    r"\b(?:asks?|asked|asking)\b": "code reads, requests, requires or calls",
    r"\b(?:wants?|wanted)\b": "code needs, requires or requests",
    r"\b(?:knows?|knew)\b": "code has, supports or stores",
    r"\b(?:is|are|was|were) said\b": "is expressed, stated or given",
    r"\bas (?:above|ever)\b": "name what it is like",
    r"\bof (?:which|whom)\b": "use two sentences",
    r"\bwhose\b[^.;:]*\bwhose\b": "use two sentences",
    r"\bin the place of\b": "instead of, or replaces",
    r"\b(?:mends?|mended)\b": "corrects, fixes",
    r"\b(?:takes?|take|took) turns\b": "alternate, run in turn",
    r"\bhad better\b": "should",
    r"\bbesides\b": "also, in addition",
    r"\bin turns\b": "alternately, in turn",
    r"\bfor ever\b": "forever",
    BEGIN + r"Of (?!course\b)\w": "begin with the subject",
    BEGIN + r"The same(?=[.,:;]| (?:as|at|by|for|from|in|of|on|to|under|when|where|with|without)\b)": "name what it is",
    BEGIN + r"(?:So (?:does|do|is|are)|As above)\b": "begin with the subject",
    BEGIN + r"What\b(?![^.]*\?)": "use a noun as the subject",
}

# Files that are compared, quoted or generated.
OTHERS = {"LICENSE", "tests/docs/words.py", "tests/mutation/survivors.txt", "tests/abi/v0.1/client.c",
          "tests/abi/v0.1/rope/rope.h", "tests/abi/v0.2/client.c", "tests/abi/v0.2/rope/rope.h"}


def c_comments(text):
    """(line, text) of each comment; comments on consecutive lines are one."""
    token = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    found = []
    for match in re.finditer(token, text, flags=re.DOTALL):
        comment = match.group()
        if comment.startswith(("//", "/*")):
            begin = text.rfind("\n", 0, match.start()) + 1
            found.append((text.count("\n", 0, match.start()) + 1, match.start() - begin,
                          not text[begin: match.start()].strip(), comment))
    return joined(found, r"^(?://[/!]?|/\*+!?| ?\*/?)|\*/$")


def test_titles(text):
    """(line, text) of the title of each Catch2 test. A title, like a heading, is not the beginning of a sentence."""
    titles = re.finditer(r'^(?:TEMPLATE_)?TEST_CASE\(\s*((?:"[^"\n]*"\s*)+)', text, flags=re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, "| " + re.sub(r'"\s*"|"\s*', "", match.group(1)))
            for match in titles]


def cpp_texts(text):
    return c_comments(text) + test_titles(text)


def hash_comments(text):
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.search(r"(?:^|\s)#(?!!)", line)
        if match and not line[: match.start()].count('"') % 2:
            column = match.end() - 1
            found.append((number, column, not line[:column].strip(), line[column:].strip()))
    return joined(found, r"^#+")


def python_comments(text):
    found = []
    for item in tokenize.generate_tokens(io.StringIO(text).readline):
        if item.type == tokenize.COMMENT and not item.string.startswith("#!"):
            found.append((item.start[0], item.start[1], not item.line[: item.start[1]].strip(), item.string))
    comments = joined(found, r"^#+")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            comments += [(node.body[0].lineno, " ".join(part.split()))
                         for part in ast.get_docstring(node).split("\n\n")]
    return comments


def joined(found, marks):
    """Joins comments on consecutive lines that begin in one column and have no code before them. An empty comment
    line ends a text."""
    texts = []
    last = None
    for number, column, is_alone, comment in found:
        lines = [re.sub(marks, "", line.strip()).strip() for line in comment.split("\n")]
        for offset, line in enumerate(lines):
            follows = (number + offset - 1, column) == last and (is_alone or offset > 0)
            if follows and texts[-1][1] and line:
                texts[-1] = (texts[-1][0], texts[-1][1] + " " + line)
            else:
                texts.append((number + offset, line))
            last = (number + offset, column)
    return [(number, text) for number, text in texts if text]


def prose(text):
    """Paragraphs, items and cells of tables of a page, without blocks of code. Headings and cells begin with a mark, so
    that they are not the beginning of a sentence."""
    text = re.sub(r"^ *```.*?^ *```$", lambda match: "\n" * match.group().count("\n"), text,
                  flags=re.MULTILINE | re.DOTALL)
    texts = []
    for match in re.finditer(r"[^\n]+(?:\n(?! *(?:[-*|#]|\d+\.) )[^\n]+)*", text):
        number = text.count("\n", 0, match.start()) + 1
        is_table = match.group().startswith("|")
        for cell in match.group().split(" | ") if is_table else [match.group()]:
            mark = "| " if is_table or cell.startswith("#") else ""
            texts.append((number, mark + re.sub(r"^(?:[-*|#]+|\d+\.)\s*", "", " ".join(cell.split()))))
    return texts


READERS = {"md": prose, "py": python_comments, "cmake": hash_comments, "txt": hash_comments, "toml": hash_comments,
           "yml": hash_comments, "in": hash_comments, "": hash_comments}
READERS.update(dict.fromkeys("c go h rs".split(), c_comments))
READERS.update(dict.fromkeys("cpp cu cuh hpp".split(), cpp_texts))


def sources():
    for path in sorted(ROOT.rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        parts = name.split("/")
        if SKIPPED & set(parts) or parts[0].startswith(("build", ".venv")) or name in OTHERS or not path.is_file():
            continue
        if path.suffix.lstrip(".") in READERS and not (path.suffix == ".txt" and path.name != "CMakeLists.txt"):
            if path.suffix or parts[0] == ".ci" or path.name == "run":
                yield name


def faults(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for number, comment in READERS[Path(name).suffix.lstrip(".")](text):
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"", "`", comment)
        for phrase, advice in PHRASES.items():
            for match in re.finditer(phrase, plain):
                shown = plain[max(0, match.start() - 20): match.end() + 20]
                yield f"{name}:{number}: \"{shown.strip()}\": {advice}"


def main():
    names = [Path(name).resolve().relative_to(ROOT).as_posix() for name in sys.argv[1:]] or list(sources())
    found = [fault for name in names for fault in faults(name)]
    if found or not names:
        sys.exit("\n".join(found) + f"\nwords.py: {len(found)} phrases to replace in {len(names)} files")
    print(f"{len(names)} files")


if __name__ == "__main__":
    main()
