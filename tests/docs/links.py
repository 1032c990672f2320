#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the targets of links and paths in the *.md files of the repository exist.

usage: links.py

A link must lead to a file, a folder or a heading. Links to other sites are not followed. Links in the folders PUBLISHED
must stay in their folder, because these pages are also shown without the repository. A path in `code` must be that of a
file, from the repository's root or from the page's folder; paths in the CHANGELOG may be those of former files. An
identifier in `code` of src/README.md must occur in the sources, and in the file that is named with it: `name` in
`path`, `path` (`name`), or the next cell of a table."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = [ROOT / "bindings" / "python", ROOT / "bindings" / "rust" / "rope", ROOT / "bindings" / "go"]
SKIPPED = {".git", ".deps", "target"}
SUFFIXES = "c|cmake|cpp|cu|cuh|go|golden|h|hpp|json|md|py|rs|toml|txt"


def pages():
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith("build")]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


def prose(path):
    """The text without blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """The names of headings in links; the second heading of one name has -1 and so on."""
    found = []
    for title in re.findall(r"^#{1,6} +(.*?) *$", prose(path), flags=re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        again = sum(re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in found)
        found.append(f"{name}-{again}" if again else name)
    return found


def fault_of_link(page, link):
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    folder = page.parent if page.parent in PUBLISHED else ROOT
    if target != folder and folder not in target.parents:
        return f"lies outside {folder.name}"
    if not target.exists():
        return "does not exist"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return f"has no heading {anchor}"
    return None


def words_of(path):
    return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))


def named_together(text):
    """The pairs of an identifier and the file that is named with it."""
    name, path = r"`\w+`", r"`((?:[\w.-]+/)+[\w.-]+)`"
    names = rf"({name}(?:(?:, | and |,\s+|\s+and\s+){name})*)"
    found = [(file, words) for words, file in re.findall(rf"{names}\s+in\s+{path}", text)]
    found += re.findall(rf"{path} \({names}", text) + re.findall(rf"\| {path} \| {names} \|", text)
    return [(word, file) for file, words in found for word in re.findall(r"\w+", words) if word != "and"]


def words_of_sources():
    files = [path for folder in ("include", "src", "bindings", "tests") for path in (ROOT / folder).rglob("*")
             if path.suffix in {".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".py"}]
    return set().union(*map(words_of, files))


def main():
    wrong, count = [], 0
    for page in pages():
        text = prose(page)
        code = re.findall(r"`([^`\n]+)`", text)
        found = []
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if not re.match(r"[a-z]+:", link):
                found.append((link, fault_of_link(page, link)))
        if page.name != "CHANGELOG.md":
            for path in code:
                if re.fullmatch(rf"([\w.-]+/)+[\w.-]+\.({SUFFIXES})", path) and not path.startswith("build/"):
                    is_there = any((folder / path).exists() for folder in (ROOT, page.parent))
                    found.append((path, None if is_there else "does not exist"))
        if page == ROOT / "src" / "README.md":
            words = words_of_sources()
            for word in code:
                if re.fullmatch(r"\w+", word):
                    found.append((word, None if word in words else "is no word of the sources"))
            for word, path in named_together(text):
                is_there = (ROOT / path).exists() and word in words_of(ROOT / path)
                found.append((word, None if is_there else f"is not in {path}"))
        count += len(found)
        wrong += [f"{page.relative_to(ROOT)}: {name} {fault}" for name, fault in found if fault is not None]
    if wrong or count == 0:
        sys.exit("links.py: " + ("\n".join(dict.fromkeys(wrong)) or "nothing was found"))
    print(f"{count} links, paths and names in {len(pages())} pages")


if __name__ == "__main__":
    main()
