# SPDX-License-Identifier: Apache-2.0
"""Rotates two tokens through librope.so by ctypes alone, with no package installed: plain_ctypes.py LIBROPE_SO

librope/_abi.py declares the constants, structs and functions of <rope/rope.h>. The program loads this file alone.
"""
import ctypes
import importlib.util
import math
import pathlib
import sys

if len(sys.argv) != 2:
    sys.exit(__doc__)
TOKENS, HEADS, HEAD_DIM, THETA = 2, 1, 4, 10000.0

file = pathlib.Path(__file__).resolve().parents[1] / "librope" / "_abi.py"
spec = importlib.util.spec_from_file_location("rope_abi", file)
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)
rope = ctypes.CDLL(sys.argv[1])
abi.bind(rope)


def check(status):
    if status != abi.ROPE_STATUS_SUCCESS:
        sys.exit(f"{rope.rope_status_name(status).decode()}: {rope.rope_last_error().decode()}")


def tensor(array, dtype, *shape):
    """A view of a ctypes array. Its strides are 0, which means compact."""
    return abi.rope_tensor_t(
        data=ctypes.addressof(array), dtype=dtype, ndim=len(shape), shape=shape + (0,) * (4 - len(shape)))


config = abi.rope_config_t(
    struct_size=ctypes.sizeof(abi.rope_config_t), device=abi.ROPE_DEVICE_CPU, dtype=abi.ROPE_DTYPE_F32,
    layout=abi.ROPE_LAYOUT_THD, style=abi.ROPE_STYLE_HALF, head_dim=HEAD_DIM, theta=THETA)
desc = abi.rope_desc_p()
check(rope.rope_desc_create(config, desc))

q = (ctypes.c_float * (TOKENS * HEADS * HEAD_DIM))(1, 1, 0, 0, 1, 1, 0, 0)  # every pair is (1, 0)
positions = (ctypes.c_int64 * TOKENS)(1, 1000)
args = abi.rope_args_t(
    struct_size=ctypes.sizeof(abi.rope_args_t), q=tensor(q, abi.ROPE_DTYPE_F32, TOKENS, HEADS, HEAD_DIM),
    positions=tensor(positions, abi.ROPE_DTYPE_I64, TOKENS))
check(rope.rope_forward(desc, args, None))  # in place: there is no q_out
rope.rope_desc_destroy(desc)

for token, position in enumerate(positions):
    for pair in range(HEAD_DIM // 2):
        angle = position * THETA ** (-2 * pair / HEAD_DIM)
        channel = token * HEAD_DIM + pair  # there is one head
        a, b = q[channel], q[channel + HEAD_DIM // 2]
        print(f"position {position:4}, pair {pair}: ({a:9.6f}, {b:9.6f})")
        assert abs(a - math.cos(angle)) < 2e-7 and abs(b - math.sin(angle)) < 2e-7, angle
