#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the results of peers.py, of plain calls or of the step: NAME.png, shares of a copy's rate, and
NAME-decode.png, times of decode.

usage: plots.py NAME.json [--check]

A bar shows the fastest implementation of librope or of the peers for a workload; the bar of the peers has the fastest
one's name. sglang uses programmatic dependent launch, flashinfer in norms and SwiGLU, the others do not. librope has
bars without it and, for decode, bars with it.
The script needs matplotlib. --check does not: it fails if the pictures show other figures than NAME.json.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

from report import family_of

# Readable labels of the cases of cases.txt.
THROUGHPUT = {
    "rope/llama3-70b/prefill/bf16": "Llama-3-70B prefill, 16 384 tokens",
    "rope/llama3-8b/prefill/bf16": "Llama-3-8B prefill, 8 192 tokens",
    "rope/d128-rot64/bf16": "Llama-3-8B prefill, half of each head",
    "rope/d256-rot64/bf16": "GPT-NeoX pairs, a quarter of each head",
    "rope/gpt-j/prefill/f16": "GPT-J prefill, a quarter of each head",
    "rope/r1/f32": "32 heads, 320 000 tokens, F32",
    "rope/one-head/f32": "one head, 128 x 8 192 tokens, F32",
    "rope/r3/f16": "GPT-J pairs, 32 heads, 2 048 tokens, F16",
    "rope/train/bshd/backward/bf16": "RoPE gradient, 2 x 4 096 tokens, BSHD",
    "rope/train/sbhd/backward/bf16": "RoPE gradient, 2 x 4 096 tokens, SBHD",
    "swiglu/llama3-8b/separate/bf16": "SwiGLU of Llama-3-8B, 8 192 tokens",
    "swiglu/llama3-8b/packed/bf16": "SwiGLU of Llama-3-8B, gate and up packed",
    "swiglu/f32/f32": "SwiGLU, 4 096 x 16 384, F32",
    "swiglu/llama3-8b/backward-separate/bf16": "SwiGLU gradients, Llama-3-8B",
}
DECODE = {f"{operation}/llama3-8b/decode-{tokens}/bf16": f"{label}, {tokens} token{'s' if tokens > 1 else ''}"
          for operation, label in (("rope", "RoPE"), ("swiglu", "SwiGLU")) for tokens in (1, 8, 64, 256)}
STEP_THROUGHPUT = {
    "step/norm-rope/32+8/half/bf16": "norm, rotation, 32 + 8 heads",
    "step/norm-rope/64+8/half/bf16": "norm, rotation, 64 + 8 heads",
    "step/rope-cache/32+8+8/half/nhd-i64/bf16": "rotation, cache, 32 + 8 + 8 heads",
    "step/rope-cache/64+8+8/half/nhd-i64/bf16": "rotation, cache, 64 + 8 + 8 heads",
    "step/norm-rope-cache/32+8+8/half/nhd-i64/bf16": "norm, rotation, cache, 32 + 8 + 8 heads",
}
STEP_DECODE = {f"step/{work}/decode-{tokens}/bf16": f"{label}, {tokens} token{'s' if tokens > 1 else ''}"
               for work, label, sizes in (("norm-rope", "norm, rotation", (1, 8, 64, 256)),
                                          ("rope-cache", "rotation, cache", (1, 8, 64, 256)),
                                          ("norm-rope-cache", "norm, rotation, cache", (8, 256))) for tokens in sizes}
OWN = "librope"
OWN_PROGRAMMATIC = "librope, programmatic launch"
KEY = "Figures"  # of the digest, in the pictures


def bar_of(row):
    """The family whose bar shows a row, or None."""
    family = family_of(row)
    return OWN_PROGRAMMATIC if family == OWN and "pdl" in row["peer"] else family


def bars(document, labels, value, better):
    """[(label, {family: value})]: the best value of each family for each workload, in the order of labels."""
    rows_of = {result["workload"]: result["rows"] for result in document["workloads"]}
    groups = []
    for workload, label in labels.items():
        if workload not in rows_of:
            sys.exit(f"plots.py: the file has no workload {workload}")
        measured = [row for row in rows_of[workload] if "us" in row]
        best = {}
        for row in measured:
            name = bar_of(row)
            if name:
                best[name] = better(best.get(name, value(row, measured)), value(row, measured))
        if best:
            groups.append((label, best))
    return groups


def share(row, measured):
    """The share of the copy's rate. An implementation that moves more bytes than needed gets a lower share."""
    return row["share"] * min(other["bytes"] for other in measured) / row["bytes"]


def pictures(document):
    """The end of a file's name -> the picture's contents."""
    is_step = document["workloads"][0]["workload"].startswith("step/")
    shares = [(label, {name: value for name, value in best.items() if name != OWN_PROGRAMMATIC})
              for label, best in bars(document, STEP_THROUGHPUT if is_step else THROUGHPUT, share, max)]
    times = bars(document, STEP_DECODE if is_step else DECODE, lambda row, _: row["us"]["median"], min)
    where = f"{document['gpu']}, {document['date'][:10]}"
    prefill = f"The step, 16 384 tokens, {where}" if is_step else where
    return {
        "": {"groups": shares, "best": "max", "limit": 1.3, "line": 1, "title": f"{prefill}. Longer is faster.",
             "axis": "share of the rate of a copy of the same bytes"},
        "-decode": {"groups": times, "best": "min", "limit": 9, "line": None,
                    "title": f"Decode of {'the step' if is_step else 'Llama-3-8B'}, {where}. Shorter is faster.",
                    "axis": "microseconds for a call in a CUDA graph"},
    }


def digest(picture):
    return hashlib.sha256(json.dumps(picture, sort_keys=True).encode()).hexdigest()


def draw(picture, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    groups, limit = picture["groups"], picture["limit"]
    present = {name for _, best in groups for name in best}
    own = [name for name in (OWN, OWN_PROGRAMMATIC) if name in present]
    families = own + sorted(present - set(own))
    blues, others = ["#1f5fa8", "#7fb2e5"], pyplot.get_cmap("Set2").colors
    colors = dict(zip(families, blues[:len(own)] + list(others)))
    figure, axes = pyplot.subplots(figsize=(9, 0.8 + sum(0.14 + 0.09 * len(best) for _, best in groups)))
    place, ticks, legend = 0.0, [], {}
    for label, best in groups:
        names = [name for name in families if name in best]
        choose = max if picture["best"] == "max" else min
        fastest = choose((name for name in names if name not in own), key=best.get, default=None)
        ticks.append((place + (len(names) - 1) / 2, label))
        for name in names:
            shown = min(best[name], limit)
            legend[name] = axes.barh(place, shown, height=0.9, color=colors[name])
            if shown < best[name]:
                axes.text(shown, place, f"{best[name]:.0f} ", fontsize=7, va="center_baseline", ha="right")
            elif name == fastest:
                axes.text(shown, place, " " + name, fontsize=7, va="center_baseline")
            place += 1
        place += 1.6
    if picture["line"] is not None:
        axes.axvline(picture["line"], color="black", linewidth=0.8)
    places, labels = zip(*ticks)
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(place - 1.6, -1)
    axes.set_xlim(0, limit)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(picture["axis"], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(picture["title"], fontsize=9, loc="left", pad=22)
    axes.legend([legend[name] for name in families], families, fontsize=7, loc="lower left", bbox_to_anchor=(0, 1),
                ncols=len(families), frameon=False, borderaxespad=0.2, columnspacing=1, handlelength=1.2)
    figure.savefig(path, dpi=130, bbox_inches="tight", metadata={KEY: digest(picture)})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="NAME.json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    document = json.loads(options.file.read_text(encoding="utf-8"))
    if document.get("program") != "peers.py" or document["tiny"]:
        sys.exit(f"plots.py: {options.file} has no figures of peers.py")
    for end, picture in pictures(document).items():
        path = options.file.with_name(options.file.stem + end + ".png")
        if not options.check:
            draw(picture, path)
        elif digest(picture).encode() not in path.read_bytes():
            sys.exit(f"plots.py: {path} shows other figures than {options.file}; without --check it is drawn anew")


if __name__ == "__main__":
    main()
