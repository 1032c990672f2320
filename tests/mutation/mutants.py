# SPDX-License-Identifier: Apache-2.0
"""Finds the possible changes of a line of code in C++ and C, Python, Rust and Go."""
import ast
import hashlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLANK = "\0"  # replaces the text of comments and strings; in a replacement, it is the text that is replaced

# ---- Rules of all languages ----

SWAPS = {
    "<": ["<=", ">"], "<=": ["<", ">"], ">": [">=", "<"], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
    "+": ["-"], "-": ["+"], "*": ["+"], "/": ["*"], "%": ["/"], "&": ["|"], "|": ["&"], "<<": [">>"], ">>": ["<<"],
    "&&": ["||"], "||": ["&&"], "+=": ["-="], "-=": ["+="], "|=": ["&="], "&=": ["|="], "/=": ["*="], "*=": ["+="],
    ">>=": ["<<="],
}
WORDS = {"true": ["false"], "false": ["true"], "continue": ["break"]}
# A number may be followed by its type and, in Rust, by the dots of a range.
INTEGER = r"(?<![\w.'])\d+(?=(?:u|[iu](?:8|16|32|64|128|size))?(?![\w']|\.(?!\.)))"
HEX_INTEGER = r"(?<![\w.'])(?:0x[0-9a-f]+)(?=u?(?![\w.']))"
REAL = r"(?<![\w.])(?:0x[0-9a-f]+(?:\.[0-9a-f]+)?p|\d+\.\d+)(?=[\w+-]*)"
NOT = (r"(?<![\w)])!(?=[A-Za-z_(])", "")


def neighbours(digits):
    return [str(int(digits) + 1)] + ([str(int(digits) - 1)] if int(digits) > 0 else [])


def other_digit(digits):
    """The literal with one middle digit changed: 1.4142 becomes 1.5142."""
    places = [i for i, c in enumerate(digits) if c in "0123456789abcdef" and not digits.startswith("0x", max(i - 1, 0))]
    if digits.startswith("0x"):
        places = [i for i in places if i >= 2]
    at = places[len(places) // 2]
    bases = "0123456789abcdef" if digits.startswith("0x") else "0123456789"
    return [digits[:at] + bases[(bases.index(digits[at]) + 1) % len(bases)] + digits[at + 1:]]


def one_of(names):
    return "(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + ")"


class Language:
    """ignored     comments, strings and characters
    left_alone  beginnings of lines without code to change
    swaps       more operators and words, with their replacements
    others      (pattern, replacement) for group `it`, or for the whole match: conditions, statements, members"""

    def __init__(self, ignored, left_alone, others, swaps=None, words=WORDS):
        swaps = {**SWAPS, **(swaps or {})}
        self.ignored, self.left_alone = re.compile(ignored, re.S), re.compile(r"\s*" + left_alone)
        rules = [("(?<= )" + one_of(swaps) + "(?= )", swaps.get), (r"\b" + one_of(words) + r"\b", words.get),
                 (INTEGER, neighbours), (HEX_INTEGER, other_digit), (REAL, other_digit),
                 *((pattern, lambda _, replacement=replacement: [replacement]) for pattern, replacement in others)]
        self.rules = [(re.compile(pattern), changed) for pattern, changed in rules]

    def code_lines(self, text):
        """The lines with ignored parts blanked out; '' for lines without code to change."""
        lines = self.ignored.sub(lambda match: re.sub(r"[^\n]", BLANK, match.group(0)), text).split("\n")
        return ["" if self.left_alone.match(line) else line for line in lines]

    def changes(self, line):
        """(column, length, replacement) for each change of one line of code."""
        for pattern, changed in self.rules:
            group = "it" if "it" in pattern.groupindex else 0
            for match in pattern.finditer(line):
                for replacement in changed(match.group(group)):
                    yield match.start(group), len(match.group(group)), replacement


# ---- The languages ----

IGNORED = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
NEGATED = f"!({BLANK})"

CPP = Language(
    IGNORED + r"'(?:\\.|[^'\\\n])*'", r"(#|static_assert|template|namespace|using|asm\(|ROPE_INDEPENDENT)", [
        NOT, (r"\+\+(?=\w)", "--"), (r"--(?=\w)", "++"),
        (r"^\s*(?:\} else )?if \((?P<it>.*)\) (?:return .*;|continue;|break;|\{|[\w\[\].>-]+ [-+|]?= .*;)$", NEGATED),
        (r"^\s*(?P<it>(?!return\b|const\b|constexpr\b|using\b|static\b|else\b|case\b|default\b|[a-z_]\w*_t \w|"
         r"(?:bool|int|float|double|char|View|Real) \w)"
         r"(?:ROPE_TRY\(.*\);|[a-z_][\w.>\-\[\]]*\(.*\);|\*?[a-z_][\w.>\-\[\]]*(?:\(\))? [-+|&/*]?= .*;|"
         r"(?:\+\+|--)[\w.>\-]+;))$", ";")])

PYTHON = Language(
    r'#[^\n]*|""".*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', r"(import |from |@)", [
        (r"(?<!is )\bnot (?!in )", ""),
        (r"^\s*(?:if|elif|while) (?P<it>.*):[ \0]*$", f"not ({BLANK})"),
        (r"\S if (?P<it>.*?) else ", f"not ({BLANK})"),
        (r"\S if (?P<it>[^()\[\]]*)[)\]]", f"not ({BLANK})"),
        (r"^\s*(?P<it>(?!return\b|raise$|def\b|class\b|with\b|for\b|if\b|elif\b|while\b)"
         r"(?:raise .*|[a-z_][\w.]*\(.*\)|[a-z_][\w.\[\]]*(?:, [\w.]+)* [-+|]?= .*[^,(\[{]))$", "pass"),
        (r"^\s+(?P<it>\w+=.*,)$", "")],
    {"//": ["*"], "and": ["or"], "or": ["and"], "is": ["is not"], "is not": ["is"], "not in": ["in"]},
    {"True": ["False"], "False": ["True"], "continue": ["break"]})

RUST = Language(
    IGNORED + r"'(?:\\.|[^'\\\n])'", r"(#|use |pub use |mod |pub mod |impl|unsafe impl|extern)", [
        NOT, (r"\b(?:if|while) (?P<it>(?!let ).+?) \{", NEGATED),
        (r"^\s*(?P<it>(?!return\b|let\b|const\b|pub\b|use\b|type\b)"
         r"(?:check\(.*\)\?;|[a-z_][\w.:]*\(.*\)\??;|[*(]?[a-z_][\w., \[\]]* [-+|]?= .*;))$", ""),
        # Values that are already 0, values without a default, and types of parameters and members are left out.
        (r"^\s+[a-z]\w*: (?!0,|0\.0,|false,|ABSENT|null|PhantomData|&|\*|\[|[iu]\d|[iu]size|f64|String|\w+<|"
         r"sys::\w+_t\b|Device,|View)(?P<it>.*),$", "Default::default()")])

GO = Language(
    IGNORED + r"`[^`]*`|'(?:\\.|[^'\\\n])'", r"(import|package|type )", [
        NOT, (r"(?<=\w)\+\+", "--"), (r"(?<=\w)--", "++"),
        (r"^\s*(?:\} else )?if (?:[^;]*; )?(?P<it>[^;]*) \{$", NEGATED),
        (r"^\s*(?P<it>(?!return\b|var\b|const\b|defer\b|go\b|func\b)"
         r"(?:[a-z_][\w.]*\(.*\)|[a-z_][\w., \[\]]* [-+|*]?= .*[^,({]))$", ""),
        (r"^\s+(?P<it>\w+:\s+.*,)$", "")])

LANGUAGES = {".cpp": CPP, ".hpp": CPP, ".h": CPP, ".py": PYTHON, ".rs": RUST, ".go": GO}


def python_code(text):
    """The syntax tree of a Python file without type annotations; None if the file has an error."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for annotation in ("annotation", "returns"):
            if hasattr(node, annotation):
                setattr(node, annotation, None)
    return ast.dump(tree)


# ---- Mutants ----

class Mutant:
    def __init__(self, file, number, line, column, length, replacement):
        self.file, self.number, self.line = file, number, line
        self.changed = line[:column] + replacement.replace(BLANK, line[column:column + length]) + line[column + length:]

    def key(self):
        return f"{self.file} | {self.line.strip()} | {self.changed.strip()}"

    def order(self, seed):
        return hashlib.sha256(f"{seed} {self.key()}".encode()).hexdigest()

    def text(self):
        """The whole file, changed."""
        lines = (ROOT / self.file).read_text().split("\n")
        lines[self.number - 1] = self.changed
        return "\n".join(lines)


def mutants_of(files):
    """Every mutant of the files; of several equal lines in a file, one is changed."""
    mutants = {}
    for file in files:
        text = (ROOT / file).read_text()
        language = LANGUAGES[pathlib.Path(file).suffix]
        lines = text.split("\n")
        for number, code in enumerate(language.code_lines(text)):
            for change in language.changes(code):
                mutant = Mutant(file, number + 1, lines[number], *change)
                mutants.setdefault(mutant.key(), mutant)
    return list(mutants.values())
