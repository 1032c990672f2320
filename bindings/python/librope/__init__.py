# SPDX-License-Identifier: Apache-2.0
# librope: rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and NVIDIA GPUs
"""The Python binding of librope.so. All mathematics and constants are the library's; <rope/rope.h> is the manual.

    desc = librope.RopeDesc(head_dim=64, theta=10000.0, style="half", layout="thd", dtype="f32")
    q, k = desc.forward(q, k, positions=positions)     # new tensors
    desc.forward(q, k, positions=positions, out=(q, k))  # in place
    h = librope.swiglu(gate, up)

Tensors come from torch, NumPy, CuPy or JAX, or from any library whose objects have __dlpack__, __cuda_array_interface__
or __array_interface__. They are used where they lie, with their strides. CUDA calls run on the current stream of the
tensor's framework, or on stream=.

librope.torch has differentiable operators for torch.compile; librope.transformers runs Hugging Face models on them.

The library is the file $ROPE_LIBRARY, or librope.so.0 in $ROPE_LIB_DIR, or the one inside this package, or the one that
the system's loader finds; `python -m librope` prints which.
"""
from __future__ import annotations

import importlib
from typing import Any

from ._enums import (Activation, Device, Dtype, Layout, LimitRule, NormExtent, NormOrder, NormRounding, NormTensors,
                     NormType, QuantRounding, RotationRounding, ScaleLayout, Scaling, Sections, Style, TableRows)
from ._frequencies import ScaledFrequencies, SectionAxes, device_count, scaled_frequencies, section_axes, why_no_device
from ._groups import Cache, Input, Norm, NormGradient, Quant, SwigluColumn, SwigluQuant
from ._hf_config import from_hf_config
from ._library import (CudaError, Error, InternalError, InvalidArgument, NoDevice, NotSupported, OutOfMemory,
                       __version__, build_info, version)
from ._rope import RopeDesc
from ._swiglu import SwigluDesc, swiglu, swiglu_backward

__all__ = [
    "Activation",
    "Cache",
    "CudaError",
    "Device",
    "Dtype",
    "Error",
    "Input",
    "InternalError",
    "InvalidArgument",
    "Layout",
    "LimitRule",
    "NoDevice",
    "Norm",
    "NormExtent",
    "NormGradient",
    "NormOrder",
    "NormRounding",
    "NormTensors",
    "NormType",
    "NotSupported",
    "OutOfMemory",
    "Quant",
    "QuantRounding",
    "RopeDesc",
    "RotationRounding",
    "ScaleLayout",
    "ScaledFrequencies",
    "Scaling",
    "SectionAxes",
    "Sections",
    "Style",
    "SwigluColumn",
    "SwigluDesc",
    "SwigluQuant",
    "TableRows",
    "__version__",
    "build_info",
    "device_count",
    "from_hf_config",
    "scaled_frequencies",
    "section_axes",
    "swiglu",
    "swiglu_backward",
    "version",
    "why_no_device",
]


def __getattr__(name: str) -> Any:
    """The first use of librope.torch and librope.transformers imports them."""
    if name in ("torch", "transformers"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
