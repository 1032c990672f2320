# SPDX-License-Identifier: Apache-2.0
"""Rotates queries and keys where they lie: a prefill, one decode step for two sequences, and back again.

These arrays are NumPy's. Tensors of torch, of CuPy and of any library with __dlpack__ take the same calls, on the CPU
or on a GPU.
"""
import librope
import numpy

BATCH, TOKENS, Q_HEADS, K_HEADS, HEAD_DIM = 2, 6, 8, 2, 64

desc = librope.RopeDesc(head_dim=HEAD_DIM, theta=500000.0, style="half", layout="bshd", dtype="f32")
random = numpy.random.default_rng(0)
q = random.standard_normal((BATCH, TOKENS, Q_HEADS, HEAD_DIM), dtype=numpy.float32)
k = random.standard_normal((BATCH, TOKENS, K_HEADS, HEAD_DIM), dtype=numpy.float32)
original = q.copy(), k.copy()

# Without positions each token has its index in the sequence.
desc.forward(q, k, out=(q, k))

# The last token again, as in a decode step: one token of each sequence, at its own position.
positions = numpy.full((BATCH, 1), TOKENS - 1)
step = original[0][:, -1:].copy()
desc.forward(step, positions=positions, out=step)
assert numpy.array_equal(step, q[:, -1:]), "the same angles, the same bits"

# backward is the transpose of forward, which undoes a rotation.
desc.backward(q, k, out=(q, k))
error = max(abs(x - y).max() for x, y in zip((q, k), original))
assert error < 2e-6, error
print(f"rotated {q.nbytes + k.nbytes} bytes in place and back, largest difference {error:.1e}")
print(desc.explain(q, k))
