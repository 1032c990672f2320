# SPDX-License-Identifier: Apache-2.0
"""Rotates the queries and keys of a packed QKV tensor in place, then gates: NumPy here, torch, CuPy and JAX alike."""
import librope
import numpy

TOKENS, Q_HEADS, K_HEADS, HEAD_DIM = 4, 8, 2, 64

desc = librope.RopeDesc(head_dim=HEAD_DIM, theta=10000.0, style="half", layout="thd", dtype="f32")
qkv = numpy.zeros((TOKENS, Q_HEADS + 2 * K_HEADS, HEAD_DIM), dtype=numpy.float32)
qkv[..., : HEAD_DIM // 2] = 1.0  # every pair is (1, 0)
positions = numpy.array([0, 1, 2, 1_000_000])

q, k = qkv[:, :Q_HEADS], qkv[:, Q_HEADS : Q_HEADS + K_HEADS]
desc.forward(q, k, positions=positions, out=(q, k))  # without out: new tensors
for token, position in enumerate(positions):
    print(f"position {position:7}: the first pair is ({q[token, 0, 0]:9.6f}, {q[token, 0, HEAD_DIM // 2]:9.6f})")

gate, up = numpy.ones((2, 3, 16), dtype=numpy.float32)
print(f"swiglu(1, 1) is {librope.swiglu(gate, up)[0, 0]:.6f}")
