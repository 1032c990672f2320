#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of times and demands from the JSON of rope-bench and of peers.py.

usage: report.py FILE... [--also FILE]... [--update | --check]

Each FILE names the program that wrote it. If several files are from one program, the last one with a case counts.
README.md of the repository has the machine and the date of the first file of rope-bench.
--also files are of rope-bench on another GPU; their times are shown beside the first one's. The text is printed. With
--update it is written between the two marker lines of README.md in this folder, and the rows of SUMMARY between those
of the repository's README.md; --check fails if one of the two files has another text.
"""

import argparse
import fnmatch
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN = "<!-- tests/bench/report.py writes from here -->"
END = "<!-- to here -->"

# Rows of the table of demands: label, names of cases. A '|' row lists each of its cases; other rows are summarised.
ROWS = [
    ("RoPE, 16-bit data, computed angles, 604 MB: in place", "rope/llama3-70b/prefill/*16/computed/in-place"),
    ("the same out of place", "rope/llama3-70b/prefill/*16/computed/out-of-place"),
    ("the same with programmatic launch: in place", "rope/llama3-70b/prefill/*16/computed/in-place/pdl"),
    ("the same with programmatic launch: out of place", "rope/llama3-70b/prefill/*16/computed/out-of-place/pdl"),
    ("RoPE, 16-bit data, computed angles, 168 MB: in place", "rope/llama3-8b/prefill/*16/computed/in-place"),
    ("the same out of place", "rope/llama3-8b/prefill/*16/computed/out-of-place"),
    ("the same with programmatic launch: in place", "rope/llama3-8b/prefill/*16/computed/in-place/pdl"),
    ("the same with programmatic launch: out of place", "rope/llama3-8b/prefill/*16/computed/out-of-place/pdl"),
    ("RoPE, F32 tables, 604 MB", "rope/llama3-70b/prefill/bf16/table-f32/*"),
    ("RoPE, F32 tables, 168 MB", "rope/llama3-8b/prefill/bf16/table-f32/*"),
    ("RoPE, 16-bit tables", "rope/llama3-*/prefill/bf16/table-16/*", "rope/llama3-8b/rows-by-token/*"),
    ("RoPE from tables, each operation rounded", "rope/llama3-70b/prefill-rounding-each/*"),
    ("RoPE, tables, one head a token", "rope/one-head/*/table-*"),
    ("RoPE, one head a token, computed angles", "rope/one-head/bf16/computed/*"),
    ("RoPE, F32 data, computed angles", "rope/r1/f32/computed/*", "rope/one-head/f32/computed/*",
     "rope/llama3-70b/prefill/f32/computed/*"),
    ("RoPE, F32 data, tables", "rope/r1/f32/table-f32/*", "rope/llama3-70b/prefill/f32/table-f32/*"),
    ("RoPE, 34 MB", "rope/r3/*-place"),
    ("RoPE, 34 MB, programmatic launch", "rope/r3/*/pdl"),
    ("chunks of 2048 tokens; 8192 tokens of 8 + 1 heads", "rope/*/chunk-*", "rope/*/tp8-*"),
    ("backward; BSHD, SBHD and BHSD", "rope/train/*"),
    ("packed QKV, sequences, I32 and I64 positions, INTERLEAVED, two axes", "rope/*/packed-qkv/*", "rope/*/varlen/*",
     "rope/*/positions-*", "rope/*/interleaved/*", "rope/chatglm/*", "rope/qwen2.5-72b/*"),
    ("heads of 64, 80, 96, 192 and 256; 25 + 5, 28 + 4 and 71 + 1 heads; three axes", "rope/head-dim-*", "rope/heads-*",
     "rope/qwen2.5-7b/*", "rope/qwen2-vl-7b/*", "rope/gpt-oss/*"),
    ("partial rotary in place, of a scale of the same bytes", "rope/d128-rot64/*", "rope/d256-rot64/*",
     "rope/gpt-j/*/in-place", "rope/deepseek-v3/*in-place*"),
    ("partial rotary out of place", "rope/gpt-j/*/out-of-place", "rope/deepseek-v3/*/out-of-place"),
    ("views that no vector fits", "rope/view/*"),
    ("|decode of 1, 8, 64, 256 tokens, F32 table, programmatic launch", "rope/*/decode-*/table-f32/in-place/pdl"),
    ("|the same without", "rope/*/decode-*/table-f32/in-place"),
    ("|decode of 1, 8, 64, 256 tokens, computed angles, programmatic launch", "rope/*/decode-*/computed/in-place/pdl"),
    ("|the same without", "rope/*/decode-*/computed/in-place"),
    ("decode: the rate of one call over that of separate ones", "step/beside/*/decode-*"),
    ("prefill: the same", "step/beside/*"),
    ("a step backward", "step/backward/*"),
    ("rotation and cache, codes in the caches, computed angles", "step/rope-cache/codes-cache/*/computed/in-place"),
    ("the same from an F32 table", "step/rope-cache/codes-cache/*/table-f32/in-place"),
    ("codes of q too, computed angles", "step/rope-cache/codes-all/*/computed/out-of-place"),
    ("the same from an F32 table", "step/rope-cache/codes-all/*/table-f32/out-of-place"),
    ("norm, rotation and cache, codes of q too, computed angles",
     "step/norm-rope-cache/codes-all/*/computed/out-of-place"),
    ("the same from an F32 table", "step/norm-rope-cache/codes-all/*/table-f32/out-of-place"),
    ("rotation and cache, codes with a written scale for each head", "step/none-rope-cache/codes-all/*/out-of-place"),
    ("the same with a norm", "step/rms-rope-cache/codes-all/*/out-of-place"),
    ("latent heads, codes", "step/latent/codes-all/*/out-of-place"),
    ("latent heads in 16 bits, computed angles", "step/latent/*/computed/in-place"),
    ("the same from an F32 table", "step/latent/*/table-f32/in-place"),
    ("|rotation and cache of 1, 8, 64, 256 tokens, codes in the caches, programmatic launch",
     "step/rope-cache/codes-cache/decode-*/computed/*"),
    ("|the same from an F32 table", "step/rope-cache/codes-cache/decode-*/table-f32/*"),
    ("|codes of q too", "step/rope-cache/codes-all/decode-*/computed/*"),
    ("|the same from an F32 table", "step/rope-cache/codes-all/decode-*/table-f32/*"),
    ("|norm, rotation and cache, codes of q too", "step/norm-rope-cache/codes-all/decode-*/computed/*"),
    ("|the same from an F32 table", "step/norm-rope-cache/codes-all/decode-*/table-f32/*"),
    ("|latent heads of 1, 8, 64, 256 tokens, codes", "step/latent/codes-all/decode-*/computed/*"),
    ("|the same from an F32 table", "step/latent/codes-all/decode-*/table-f32/*"),
    ("|latent heads in 16 bits", "step/latent/decode-*/computed/*"),
    ("|the same from an F32 table", "step/latent/decode-*/table-f32/*"),
    ("1 to 256 tokens with three position axes or a page table", "step/*/mrope/decode-*", "step/*/pages/decode-*"),
    ("norm and rotation in place, computed angles", "step/norm-rope/*/computed/in-place"),
    ("the same from an F32 table", "step/norm-rope/*/table-f32/in-place"),
    ("rotation and cache, computed angles", "step/rope-cache/*/computed/in-place",
     "step/none-rope-cache/pages/*/computed/in-place"),
    ("the same from an F32 table", "step/rope-cache/*/table-f32/in-place"),
    ("norm, rotation and cache, computed angles", "step/norm-rope-cache/*/computed/in-place",
     "step/rms-rope-cache/pages/*/computed/in-place"),
    ("the same from an F32 table", "step/norm-rope-cache/*/table-f32/in-place"),
    ("k and v to a cache alone", "step/cache-alone/*/bf16"),
    ("|norm and rotation of 1, 8, 64, 256 tokens, programmatic launch", "step/norm-rope/decode-*/computed/*"),
    ("|the same from an F32 table", "step/norm-rope/decode-*/table-f32/*"),
    ("|rotation and cache of 1, 8, 64, 256 tokens, programmatic launch", "step/rope-cache/decode-*/computed/*"),
    ("|the same from an F32 table", "step/rope-cache/decode-*/table-f32/*"),
    ("|norm, rotation and cache of 1, 8, 64, 256 tokens, programmatic launch",
     "step/norm-rope-cache/decode-*/computed/*"),
    ("|the same from an F32 table", "step/norm-rope-cache/decode-*/table-f32/*"),
    ("|k and v of 1, 8, 64, 256 tokens to a cache alone, programmatic launch", "step/cache-alone/decode-*"),
    ("SwiGLU, other gates", "swiglu/gates/*"),
    ("SwiGLU, experts", "swiglu/experts/*"),
    ("SwiGLU, outputs of codes", "swiglu/codes/*"),
    ("SwiGLU, separate or packed", "swiglu/*/separate/*", "swiglu/*/packed/*", "swiglu/f32/f32"),
    ("SwiGLU, interleaved", "swiglu/*/interleaved/*"),
    ("SwiGLU, backward", "swiglu/*backward*"),
    ("|SwiGLU of 1, 8, 64, 256 rows of 14336, programmatic launch", "swiglu/*/decode-*/pdl"),
    ("host time of a call above an empty launch", "host/*/call*"),
    ("creating a descriptor, warm", "host/*/create"),
    ("creating the first descriptor with a norm", "host/step/create-next"),
    ("CPU, the rate of one call over that of separate ones", "cpu/step/beside/*"),
    ("CPU, steps with codes in all outputs, all cores, of memcpy", "cpu/step/*/codes-all/*"),
    ("CPU, a step backward", "cpu/step/backward/*"),
    ("CPU, norm, rotation and cache, all cores, 64 MiB, of memcpy", "cpu/step/*/threads-all"),
    ("CPU, SwiGLU to codes", "cpu/swiglu/codes/*"),
    ("CPU, all cores, 64 MiB, of memcpy", "cpu/*/threads-all"),
    ("CPU, decode of one token", "cpu/*/decode-*"),
]

# Rows of the table of times.
TIMES = [
    ("Llama-3-70B prefill: 16 384 tokens, 64 + 8 heads of 128, bf16", "rope/llama3-70b/prefill/bf16/computed/in-place"),
    ("the same with programmatic launch", "rope/llama3-70b/prefill/bf16/computed/in-place/pdl"),
    ("the same out of place", "rope/llama3-70b/prefill/bf16/computed/out-of-place"),
    ("the same with an F32 table", "rope/llama3-70b/prefill/bf16/table-f32/in-place"),
    ("Llama-3-8B prefill: 8 192 tokens, 32 + 8 heads of 128, bf16", "rope/llama3-8b/prefill/bf16/computed/in-place"),
    ("Qwen2.5-7B prefill: 16 384 tokens, 28 + 4 heads of 128, bf16", "rope/qwen2.5-7b/prefill/bf16/computed/in-place"),
    ("DeepSeek-V3: the last 64 of 192 channels, 8 192 tokens, 128 heads",
     "rope/deepseek-v3/tail/bf16/computed/in-place"),
    ("gpt-oss prefill: 16 384 tokens, 64 + 8 heads of 64, bf16", "rope/gpt-oss/prefill/bf16/computed/in-place"),
    ("GPT-J prefill: 64 of 256 channels, 8 192 tokens, 16 + 16 heads, f16", "rope/gpt-j/prefill/f16/computed/in-place"),
    ("backward, SBHD: 2 x 4096 tokens, 32 + 32 heads, bf16", "rope/train/sbhd/backward/bf16/computed/in-place"),
    ("decode of 1 token, 64 + 8 heads, programmatic launch", "rope/llama3-70b/decode-1/bf16/computed/in-place/pdl"),
    ("decode of 64 tokens, programmatic launch", "rope/llama3-70b/decode-64/bf16/computed/in-place/pdl"),
    ("norm and rotation: 16 384 tokens, 64 + 8 heads of 128, bf16", "step/norm-rope/64+8/half/bf16/computed/in-place"),
    ("rotation and cache: 64 + 8 + 8 heads", "step/rope-cache/64+8+8/half/nhd-i64/bf16/computed/in-place"),
    ("norm, rotation and cache: 64 + 8 + 8 heads",
     "step/norm-rope-cache/64+8+8/half/nhd-i64/bf16/computed/in-place"),
    ("k and v of 8 + 8 heads to a cache alone", "step/cache-alone/0+8+8/nhd-i64/bf16"),
    ("SwiGLU, 8192 x 14336, packed, bf16", "swiglu/llama3-8b/packed/bf16"),
    ("SwiGLU backward, 8192 x 14336, bf16", "swiglu/llama3-8b/backward-separate/bf16"),
]

# Rows of TIMES that are also in the repository's README.md.
SUMMARY = {
    "rope/llama3-70b/prefill/bf16/computed/in-place",
    "rope/llama3-8b/prefill/bf16/computed/in-place",
    "rope/gpt-oss/prefill/bf16/computed/in-place",
    "rope/llama3-70b/decode-1/bf16/computed/in-place/pdl",
    "swiglu/llama3-8b/packed/bf16",
    "swiglu/llama3-8b/backward-separate/bf16",
}

UNITS = {"share": "", "scale-share": "", "separate-share": "", "us": " us", "us-above": " us", "us-scaled": " us"}
SHARES = ("share", "scale-share", "separate-share")


def read(paths):
    """The documents of rope-bench, with cases by name, and those of peers.py, with results by workload."""
    bench, peers = [], []
    cases, workloads = {}, {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document.get("tiny"):
            sys.exit(f"report.py: {path} is of a --tiny run, whose times mean nothing")
        if document.get("program") == "rope-bench":
            bench.append(document)
            cases.update({row["name"]: row for row in document["cases"]})
        elif document.get("program") == "peers.py":
            peers.append(document)
            workloads.update({result["workload"]: result["rows"] for result in document["workloads"]})
        else:
            sys.exit(f"report.py: {path} is neither of rope-bench nor of peers.py")
    return bench, cases, peers, workloads


def number(value, metric):
    digits = 3 if metric in SHARES else 2 if value < 100 else 1
    return f"{value:.{digits}f}"


def reached_number(row):
    """With enough digits to distinguish a missed value from its bound."""
    value, bound, metric = row["reached"], row["demand"]["bound"], row["demand"]["metric"]
    text = number(value, metric)
    if row["met"] is False and text == number(bound, metric):
        text = f"{value:.{len(text.partition('.')[2]) + 1}f}"
    return text


def time(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}"


def span(low, high):
    return low if low == high else f"{low} to {high}"


def peer_of(case, workloads):
    """The fastest peer of a case, its time, and its time over librope's in one process; None if none was measured."""
    name = max((name for name in workloads if case["name"].startswith(name + "/") or case["name"] == name), key=len,
               default=None)
    if name is None:
        return None
    label = case["name"][len(name):].strip("/").replace("/", ", ")
    own = "librope, ctypes" + (f" ({label})" if label else "")
    measured = {row["peer"]: row["us"]["median"] for row in workloads[name] if "us" in row}
    others = {peer: us for peer, us in measured.items() if not peer.startswith("librope")}
    if own not in measured or not others:
        return None
    best = min(others, key=others.get)
    return best, others[best], others[best] / measured[own]


def reached_text(judged, one_by_one):
    metric = judged[0]["demand"]["metric"]
    if one_by_one:
        text = " / ".join(reached_number(row) for row in judged) + UNITS[metric]
    else:
        ends = [choose(judged, key=lambda row: row["reached"]) for choose in (min, max)]
        text = span(*map(reached_number, ends)) + UNITS[metric]
    met = sum(row["met"] for row in judged)
    if met == len(judged):
        return text
    return text + (f", **{len(judged) - met} of {len(judged)} missed**" if len(judged) > 1 else ", **missed**")


def demand_text(judged, one_by_one):
    metric = judged[0]["demand"]["metric"]
    sign = "≥ " if metric in SHARES else "≤ "
    bounds = [row["demand"]["bound"] for row in judged]
    if one_by_one and len(set(bounds)) > 1:
        return sign + " / ".join(number(bound, metric) for bound in bounds) + UNITS[metric]
    return sign + span(number(min(bounds), metric), number(max(bounds), metric)) + UNITS[metric]


def peers_text(judged, workloads, one_by_one):
    found = [found for found in (peer_of(row, workloads) for row in judged) if found is not None]
    if not found:
        return ""
    if not one_by_one:
        # The peer that comes closest to librope.
        found = [min(found, key=lambda entry: entry[2])]
    return " / ".join(f"{peer} {time(us)} us, {ratio:.2f}x" for peer, us, ratio in found)


def demands(cases, workloads):
    lines = ["| | demand | reached | fastest peer, and its time over librope's |", "|---|---|---|---|"]
    shown = set()
    for label, *globs in ROWS + [("others", "*")]:
        one_by_one = label.startswith("|")
        found = [row for name, row in cases.items()
                 if "met" in row and name not in shown and any(fnmatch.fnmatchcase(name, glob) for glob in globs)]
        shown.update(row["name"] for row in found)
        for unit in dict.fromkeys(UNITS[row["demand"]["metric"]] for row in found):
            judged = [row for row in found if UNITS[row["demand"]["metric"]] == unit]
            lines.append(f"| {label.strip('|')} | {demand_text(judged, one_by_one)} | "
                         f"{reached_text(judged, one_by_one)} | {peers_text(judged, workloads, one_by_one)} |")
    return lines if len(lines) > 2 else []


def times(measured, shown):
    """The times in (document, cases), three columns for each GPU, in rows for the chosen cases."""
    names = [" ".join(document["gpu"]["name"].split()[1:2]) for document, _ in measured]
    lines = ["| | " + " | ".join(f"{name} | GB/s | share of copy" for name in names) + " |",
             "|---" * (1 + 3 * len(names)) + "|"]
    for label, name in TIMES:
        rows = [cases.get(name, {}) for _, cases in measured]
        if name not in shown or not all("share" in row for row in rows):
            continue
        cells = [label]
        for row in rows:
            cells.append(f"{time(row['us']['median'])} us")
            if "/decode-" in name:
                cells += ["", "bound by latency"]
            else:
                cells += [format(row["gb_per_s"], ".0f"), format(row["share"], ".3f")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines if len(lines) > 2 else []


def summary_of(*measured):
    """The text for the repository's README.md: machine, date, and the rows of SUMMARY."""
    where = [f"an {document['gpu']['name']} on {document['date'][:10]}" for document, _ in measured]
    return [f"Measured on {' and '.join(where)}.", "", *times(measured, SUMMARY)] if measured else []


def misses(cases):
    missed = [row for row in cases.values() if row.get("met") is False]
    if not missed:
        return []
    lines = ["<details><summary>Every demand that is missed</summary>", "", "| missed | demand | reached |", "|---|---|---|"]
    for row in missed:
        metric = row["demand"]["metric"]
        reached = reached_number(row) + UNITS[metric]
        lines.append(f"| `{row['name']}` | {demand_text([row], False)} | {reached} |")
    lines += ["", "</details>"]
    return lines


def family_of(row):
    """The family of a row of peers.py; None for librope called from C, measured in another process."""
    name = row["peer"]
    return None if name.startswith("librope, from C") else name.split(",")[0].replace(" max-autotune", "")


def peer_table(workloads):
    """Microseconds of each family's fastest, and of librope's fastest, in one process."""
    lines = ["| | librope | peers, fastest first |", "|---|---|---|"]
    for name, rows in workloads.items():
        best = {}
        for row in rows:
            family = family_of(row)
            if "us" not in row or family is None:
                continue
            best[family] = min(best.get(family, float("inf")), row["us"]["median"])
        own = best.pop("librope", None)
        if own is None or not best:
            continue
        others = ", ".join(f"{family} {time(best[family])}" for family in sorted(best, key=best.get))
        lines.append(f"| `{name}` | {time(own)} us | {others} |")
    return lines if len(lines) > 2 else []


def heading(bench, also, peers):
    lines = []
    for document, path in ([(document, "build/tests/bench/") for document in bench + also]
                           + [(document, "tests/bench/") for document in peers]):
        card = document.get("gpu")
        if isinstance(card, dict):
            version = f"CUDA {card['cuda_driver'] // 1000}.{card['cuda_driver'] % 1000 // 10}"
            card = f"{card['name']}, driver {card['driver'] or 'unknown'} ({version})"
        where = card or document.get("processor") or "a CPU"
        commit = f", commit {document['commit']}" if document.get("commit") else ""
        lines.append(f"`{path}{document['command']}`: {where}, {document['date'][:10]}{commit}, {document['library']}")
    return ["Measured with", ""] + [f"- {line}" for line in lines]


def render(paths, of_other_gpu):
    """The whole text, and the text for the repository's README.md."""
    bench, cases, peers, workloads = read(paths)
    also, also_cases, _, _ = read(of_other_gpu)
    measured = [(documents[0], rows) for documents, rows in ((bench, cases), (also, also_cases))
                if documents and documents[0].get("gpu")]
    parts = [heading(bench, also, peers), times(measured, {name for _, name in TIMES}), demands(cases, workloads),
             misses(cases), peer_table(workloads)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n", "\n".join(summary_of(*measured)) + "\n"


def updated(path, text):
    """The present text of the file, and the new one."""
    old = path.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        sys.exit(f"report.py: {path} needs one line '{BEGIN}' and, after it, one line '{END}'")
    return old, f"{old.split(BEGIN)[0]}{BEGIN}\n\n{text}\n{END}{old.split(END)[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--also", metavar="FILE", action="append", default=[])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text, summary = render(options.files, options.also)
    if not options.update and not options.check:
        print(text, end="")
        return
    for path, written in ((HERE / "README.md", text), (HERE.parents[1] / "README.md", summary)):
        old, new = updated(path, written)
        if options.update:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            sys.exit(f"report.py: {path} has other tables than these files; --update writes them")


if __name__ == "__main__":
    main()
