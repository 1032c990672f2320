#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# huggingface_sections.py - compares rope_section_axes with the rotary embeddings of an installed transformers
"""Compares the position axis of each pair, and the frequencies rounded to fp32, with published models.

  python3 tests/bindings/huggingface_sections.py [librope.so]

Without an argument the library is $ROPE_LIBRARY, or the librope.so that the loader finds. Needs transformers 5 and
torch (any build); exits with 77 if they are missing. A model's embedding computes the angles of positions that are 1 on
one axis and 0 on the others. They may differ from the frequencies by 4 ulp of fp32.

HunYuanVL is left out: transformers 5.17 splits its duplicated table by twice each section, so that the two channels of
a pair follow different axes, while Tencent's own code and vLLM split the pairs, as CHUNKED does.
"""
import ctypes
import importlib
import math
import os
import struct
import sys
import types

ULPS = 4

CHUNKED, INTERLEAVED, ERNIE, RESTARTED, VISION = 1, 2, 4, 5, 6
# The columns of pairs in a table as wide as the window: in each half, or adjacent.
HALF, ADJACENT = slice(0, None), slice(0, None, 2)

# name, module of transformers.models, class, head_dim, theta, section list there, columns, and librope's arguments
MODELS = [
    ("Qwen2-VL", "qwen2_vl", "Qwen2VLRotaryEmbedding", 128, 1000000.0, [16, 24, 24], HALF, CHUNKED, [16, 24, 24]),
    ("GLM-4.1V's sections", "qwen2_vl", "Qwen2VLRotaryEmbedding", 64, 10000.0, [8, 12, 12], HALF, CHUNKED,
     [8, 12, 12]),
    ("Qwen3-VL", "qwen3_vl", "Qwen3VLTextRotaryEmbedding", 128, 5000000.0, [24, 20, 20], HALF, INTERLEAVED,
     [24, 20, 20]),
    ("Qwen3.5's sections", "qwen3_vl", "Qwen3VLTextRotaryEmbedding", 64, 10000000.0, [11, 11, 10], HALF, INTERLEAVED,
     [11, 11, 10]),
    ("Ernie 4.5 VL", "ernie4_5_vl_moe", "Ernie4_5_VLMoeTextRotaryEmbedding", 128, 500000.0, [22, 22, 20], ADJACENT,
     ERNIE, [22, 22, 20]),
    ("Qwen2-VL's vision tower", "qwen2_vl", "Qwen2VLVisionRotaryEmbedding", 80, 10000.0, None, HALF, RESTARTED,
     [20, 20]),
    ("the same as llama.cpp says it", "qwen2_vl", "Qwen2VLVisionRotaryEmbedding", 80, 10000.0, None, HALF, VISION,
     [20, 20]),
]


class Sections(ctypes.Structure):
    """rope_sections_t"""
    _fields_ = [("struct_size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("type", ctypes.c_int32),
                ("num_sections", ctypes.c_int32), ("section", ctypes.c_int32 * 8)]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def load_library(arguments):
    path = arguments[0] if arguments else os.environ.get("ROPE_LIBRARY", "librope.so")
    library = ctypes.CDLL(path)
    library.rope_last_error.restype = ctypes.c_char_p
    library.rope_section_axes.argtypes = [
        ctypes.c_int32, ctypes.c_double, ctypes.POINTER(Sections), ctypes.POINTER(ctypes.c_int32),
        ctypes.POINTER(ctypes.c_double)]
    return library


def ulps_between(a, b):
    """The distance of two positive numbers, rounded to fp32, counted in representable numbers."""
    def ordinal(value):
        return struct.unpack("<i", struct.pack("<f", value))[0]
    return abs(ordinal(a) - ordinal(b))


def librope(library, head_dim, theta, section_type, section):
    sections = Sections(struct_size=ctypes.sizeof(Sections), type=section_type, num_sections=len(section))
    for i, pairs in enumerate(section):
        sections.section[i] = pairs
    pair_axis = (ctypes.c_int32 * (head_dim // 2))()
    inv_freq = (ctypes.c_double * (head_dim // 2))()
    status = library.rope_section_axes(head_dim, theta, ctypes.byref(sections), pair_axis, inv_freq)
    if status != 0:
        raise RuntimeError(library.rope_last_error().decode())
    return list(pair_axis), list(inv_freq)


def transformers_result(torch, embedding_class, head_dim, theta, section, columns, num_axes):
    """The axis of each pair and its angle at position 1, which is its frequency."""
    is_vision = section is None
    parameters = {"rope_type": "axial" if is_vision else "default", "rope_theta": theta}
    if not is_vision:
        parameters["mrope_section"] = section
    config = types.SimpleNamespace(head_dim=head_dim, max_position_embeddings=4096, rope_parameters=parameters)
    embedding = embedding_class(config)
    unit = torch.eye(num_axes, dtype=torch.long)  # row: token, column: axis
    positions = unit if is_vision else unit.t()[:, None, :]
    cos, sin = embedding(torch.zeros(1, dtype=torch.float32), positions)
    angles = torch.atan2(sin.double(), cos.double()).reshape(num_axes, head_dim)[:, columns][:, :head_dim // 2]
    axes, frequencies = [], []
    for pair in range(head_dim // 2):
        turning = [axis for axis in range(num_axes) if angles[axis, pair] != 0]
        if len(turning) != 1:
            raise RuntimeError(f"pair {pair} is turned by the axes {turning}")
        axes.append(turning[0])
        frequencies.append(float(angles[turning[0], pair]))
    return axes, frequencies


def main():
    try:
        import torch
        import transformers
    except ImportError as error:
        skip(f"needs transformers and torch: {error}")
    library = load_library(sys.argv[1:])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    failures = 0
    for name, module, class_name, head_dim, theta, section, columns, section_type, asked in MODELS:
        try:
            embedding_class = getattr(
                importlib.import_module(f"transformers.models.{module}.modeling_{module}"), class_name)
        except (ImportError, AttributeError):
            print(f"{name:30} not known to this transformers")
            continue
        their_axes, theirs = transformers_result(torch, embedding_class, head_dim, theta, section, columns, len(asked))
        our_axes, ours = librope(library, head_dim, theta, section_type, asked)
        worst = max(ulps_between(a, b) for a, b in zip(theirs, ours))
        is_good = their_axes == our_axes and worst <= ULPS and all(map(math.isfinite, ours))
        failures += not is_good
        print(f"{name:30} {'ok ' if is_good else 'BAD'} {len(ours):3} pairs, axes "
              f"{'equal' if their_axes == our_axes else 'differ'}, frequencies off by {worst} ulp")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
