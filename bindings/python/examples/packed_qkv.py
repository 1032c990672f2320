# SPDX-License-Identifier: Apache-2.0
"""Rotates q and k inside a packed QKV tensor of two sequences back to back, then gates a packed gate|up tensor.

A packed tensor needs no copy and no special call: its parts are views, and views have strides.
"""
import librope
import numpy

Q_HEADS, K_HEADS, HEAD_DIM, INTERMEDIATE = 8, 2, 64, 96
LENGTHS = (5, 3)
TOKENS = sum(LENGTHS)

random = numpy.random.default_rng(0)
qkv = random.standard_normal((TOKENS, Q_HEADS + 2 * K_HEADS, HEAD_DIM), dtype=numpy.float32)
before = qkv.copy()
cu_seqlens = numpy.array([0, LENGTHS[0], TOKENS], dtype=numpy.int32)

desc = librope.RopeDesc(head_dim=HEAD_DIM, theta=10000.0, style="half", layout="thd", dtype="f32")
q, k, v = numpy.split(qkv, [Q_HEADS, Q_HEADS + K_HEADS], axis=1)
desc.forward(q, k, cu_seqlens=cu_seqlens, out=(q, k))

assert numpy.array_equal(v, before[:, Q_HEADS + K_HEADS:]), "v stays as it was"
for begin, end in zip(cu_seqlens, cu_seqlens[1:]):
    alone = desc.forward(before[begin:end, :Q_HEADS])  # positions begin again with each sequence
    assert numpy.array_equal(qkv[begin:end, :Q_HEADS], alone)

# h is written over gate: SwiGLU may write over either of its inputs.
packed = random.standard_normal((TOKENS, 2 * INTERMEDIATE), dtype=numpy.float32)
gate, up = packed[:, :INTERMEDIATE], packed[:, INTERMEDIATE:]
expected = gate / (1 + numpy.exp(-gate)) * up
h = librope.swiglu(gate, up, gate)
assert h is gate and numpy.allclose(h, expected, atol=1e-5)
print(f"rotated q and k of {len(LENGTHS)} sequences in one packed tensor, and gated {h.shape[0]} x {h.shape[1]}")
