#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# huggingface_scaling.py - compares rope_scaled_frequencies with the rope functions of an installed transformers
"""Compares the frequencies of published models, rounded to fp32, and their attention factors.

  python3 tests/bindings/huggingface_scaling.py [librope.so]

Without an argument the library is $ROPE_LIBRARY, or the librope.so that the loader finds. Needs transformers and torch
(any build); exits with 77 if they are missing. Frequencies may differ by 4 ulp of fp32, in which transformers computes
them, attention factors by 1e-6 of their size.
"""
import ctypes
import math
import os
import struct
import sys

ULPS = 4
ATTENTION_ERROR = 1e-6

TYPES = {"default": 1, "linear": 2, "dynamic": 3, "yarn": 8, "llama3": 10, "longrope": 11, "proportional": 12}
NO_TRUNCATE = 1

PHI3_SHORT = (
    [1.05] * 3 + [1.1] * 3 + [1.25] * 2 + [1.4, 1.45, 1.55, 1.85, 1.9] + [2.0] * 19 + [2.1] * 2 + [2.2] + [2.35] * 4 +
    [2.4] * 2 + [2.65, 2.7, 2.9, 2.95] + [3.05] * 3)
PHI3_LONG = [
    1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49, 9.09, 11.58, 15.66,
    15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95, 53.84, 56.2, 57.95, 59.29, 59.77, 59.92,
    61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66, 63.85, 64.08, 64.76, 64.8, 64.81, 64.81]
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
PHI3 = {"rope_type": "longrope", "original_max_position_embeddings": 4096, "short_factor": PHI3_SHORT,
        "long_factor": PHI3_LONG}

# name, head_dim, theta, max_position_embeddings, the scaling of config.json, sequence length or None
MODELS = [
    ("Llama-3.1-8B", 128, 500000.0, 131072, {**LLAMA3, "factor": 8.0}, None),
    ("Llama-3.2-1B", 64, 500000.0, 131072, {**LLAMA3, "factor": 32.0}, None),
    ("Qwen2.5-7B, YaRN", 128, 1000000.0, 131072,
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, None),
    ("DeepSeek-V3", 64, 10000.0, 163840,
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}, None),
    ("gpt-oss-20b", 64, 150000.0, 131072,
     {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "truncate": False}, None),
    ("Phi-3-vision-128k, up to 4096", 96, 10000.0, 131072, PHI3, 4096),
    ("Phi-3-vision-128k, beyond 4096", 96, 10000.0, 131072, PHI3, 131072),
    ("linear, factor 8", 128, 1000000.0, 131072, {"rope_type": "linear", "factor": 8.0}, None),
    ("dynamic, 2048 at 8192", 128, 10000.0, 2048, {"rope_type": "dynamic", "factor": 4.0}, 8192),
    ("proportional, a quarter", 512, 1000000.0, 131072,
     {"rope_type": "proportional", "partial_rotary_factor": 0.25}, None),
]


class Scaling(ctypes.Structure):
    """rope_scaling_t"""
    _fields_ = [("struct_size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("type", ctypes.c_int32),
                ("num_factors", ctypes.c_int32), ("factor", ctypes.c_double),
                ("original_max_position", ctypes.c_int64), ("sequence_length", ctypes.c_int64),
                ("alpha", ctypes.c_double), ("mixed_b", ctypes.c_double), ("beta_fast", ctypes.c_double),
                ("beta_slow", ctypes.c_double), ("attention_factor", ctypes.c_double), ("mscale", ctypes.c_double),
                ("mscale_all_dim", ctypes.c_double), ("low_freq_factor", ctypes.c_double),
                ("high_freq_factor", ctypes.c_double), ("partial_rotary_factor", ctypes.c_double),
                ("short_factor", ctypes.POINTER(ctypes.c_double)), ("long_factor", ctypes.POINTER(ctypes.c_double)),
                ("pair_factors", ctypes.POINTER(ctypes.c_double))]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def load_library(arguments):
    path = arguments[0] if arguments else os.environ.get("ROPE_LIBRARY", "librope.so")
    library = ctypes.CDLL(path)
    library.rope_last_error.restype = ctypes.c_char_p
    library.rope_scaled_frequencies.argtypes = [
        ctypes.c_int32, ctypes.c_double, ctypes.POINTER(Scaling), ctypes.POINTER(ctypes.c_double),
        ctypes.POINTER(ctypes.c_double)]
    return library


def to_fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def ulps_between(a, b):
    """The distance of two finite fp32 numbers, counted in representable numbers."""
    def ordinal(value):
        bits = struct.unpack("<i", struct.pack("<f", value))[0]
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)
    return abs(ordinal(a) - ordinal(b))


def librope(library, head_dim, theta, max_position, parameters, sequence_length):
    scaling = Scaling(struct_size=ctypes.sizeof(Scaling), type=TYPES[parameters["rope_type"]])
    for key, value in parameters.items():
        if key in ("short_factor", "long_factor"):
            # transformers stores these factors as fp32.
            array = (ctypes.c_double * len(value))(*[to_fp32(factor) for factor in value])
            setattr(scaling, key, ctypes.cast(array, ctypes.POINTER(ctypes.c_double)))
            scaling.num_factors = len(value)
        elif key == "original_max_position_embeddings":
            scaling.original_max_position = value
        elif key == "truncate":
            scaling.flags = 0 if value else NO_TRUNCATE
        elif key != "rope_type":
            setattr(scaling, key, value)
    if parameters["rope_type"] == "dynamic":
        scaling.original_max_position = max_position
    if parameters["rope_type"] == "longrope":
        scaling.factor = max_position / scaling.original_max_position
    if sequence_length is not None:
        scaling.sequence_length = sequence_length
    inv_freq = (ctypes.c_double * (head_dim // 2))()
    attention_scale = ctypes.c_double()
    status = library.rope_scaled_frequencies(head_dim, theta, ctypes.byref(scaling), inv_freq,
                                             ctypes.byref(attention_scale))
    if status != 0:
        raise RuntimeError(library.rope_last_error().decode())
    return list(inv_freq), attention_scale.value


def make_config(config_class, head_dim, theta, max_position, parameters):
    config = config_class()
    config.head_dim = head_dim
    config.num_attention_heads = 2
    config.hidden_size = 2 * head_dim
    config.max_position_embeddings = max_position
    config.rope_theta = theta
    if "original_max_position_embeddings" in parameters:
        config.original_max_position_embeddings = parameters["original_max_position_embeddings"]
    config.partial_rotary_factor = parameters.get("partial_rotary_factor", 1.0)
    # 5.x reads rope_parameters, 4.x rope_scaling; in some releases one of them is a property that returns the other.
    for name, value in (("rope_scaling", dict(parameters)), ("rope_parameters", {**parameters, "rope_theta": theta})):
        try:
            setattr(config, name, value)
        except AttributeError:
            pass
    return config


def transformers_result(functions, config, parameters, sequence_length):
    inv_freq, attention_factor = functions[parameters["rope_type"]](config, "cpu", seq_len=sequence_length)
    return [float(value) for value in inv_freq.float()], float(attention_factor)


def main():
    try:
        import torch  # noqa: F401
        import transformers
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    except ImportError as error:
        skip(f"needs transformers and torch: {error}")
    config_class = getattr(transformers, "PretrainedConfig", None) or transformers.PreTrainedConfig
    library = load_library(sys.argv[1:])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    failures = 0
    for name, head_dim, theta, max_position, parameters, sequence_length in MODELS:
        if parameters["rope_type"] not in ROPE_INIT_FUNCTIONS:
            print(f"{name:30} not known to this transformers")
            continue
        config = make_config(config_class, head_dim, theta, max_position, parameters)
        theirs, their_factor = transformers_result(ROPE_INIT_FUNCTIONS, config, parameters, sequence_length)
        ours, our_factor = librope(library, head_dim, theta, max_position, parameters, sequence_length)
        rounded = [to_fp32(value) for value in ours]
        is_same_length = len(theirs) == len(rounded)
        distances = [ulps_between(a, b) for a, b in zip(theirs, rounded)]
        worst = max(distances)
        at = distances.index(worst)
        factor_error = abs(our_factor / their_factor - 1)
        is_good = is_same_length and worst <= ULPS and factor_error <= ATTENTION_ERROR and math.isfinite(our_factor)
        failures += not is_good
        print(f"{name:30} {'ok ' if is_good else 'BAD'} {len(rounded):3} pairs, {worst} ulp at pair {at} "
              f"({theirs[at]:.9g}, {rounded[at]:.9g}), attention factor {our_factor:.9g}, off by {factor_error:.1e}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
