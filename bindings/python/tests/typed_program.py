# SPDX-License-Identifier: Apache-2.0
# typed_program.py - the results of type checkers for calls into the package; test_types.py runs mypy and pyright on it
"""The program is not run. An unnecessary `type: ignore` is an error, so each line with one must be refused."""
from typing import Optional, Tuple, Union

import jax
import librope
import librope.torch
import librope.transformers
import numpy
import torch
from typing_extensions import assert_type

Array = numpy.ndarray[Tuple[int, ...], numpy.dtype[numpy.float32]]


def rotations(desc: librope.RopeDesc, q: Array, k: torch.Tensor, v: jax.Array, maybe: Optional[Array]) -> None:
    assert_type(desc.forward(q), Array)
    assert_type(desc.forward(k, positions=k, position_offset=7, table_rows="by_token"), torch.Tensor)
    assert_type(desc.forward(v), jax.Array)
    assert_type(desc.forward(q, k), Tuple[Array, torch.Tensor])
    assert_type(desc.forward(q, k, v), Tuple[Array, torch.Tensor, jax.Array])
    assert_type(desc.forward(q, None, v), Tuple[Array, jax.Array])
    assert_type(desc.forward(q, v=v, out=(q, None)), Tuple[Array, jax.Array])
    assert_type(desc.forward(q, maybe), Union[Array, Tuple[Array, Array]])
    assert_type(desc.forward(k=k), torch.Tensor)
    assert_type(desc.forward(None, q), Array)
    assert_type(desc.forward(v=v, unrotated=True), jax.Array)
    assert_type(desc.forward(k=k, v=v, v_unrotated=True), Tuple[torch.Tensor, jax.Array])
    assert_type(desc.forward(None, q, v), Tuple[Array, jax.Array])
    assert_type(
        desc.forward(q, k, norm=librope.Norm(q_weight=q), cache=librope.Cache(k, slots=k, skip_slot_0=True)),
        Tuple[Array, torch.Tensor])
    assert_type(
        desc.forward(q, k, quant=librope.Quant(k_scale=k, scale_multiplies=True), input=librope.Input(q_row_factor=q)),
        Tuple[Array, torch.Tensor])
    assert_type(desc.backward(q, input=librope.Input(q_row_factor=q)), Array)
    assert_type(desc.backward(q), Array)
    assert_type(desc.backward(q, out=q, accumulate=True), Array)
    assert_type(desc.backward(k, k, stream=7), Tuple[torch.Tensor, torch.Tensor])
    assert_type(desc.explain(q, k), str)
    desc.forward()  # type: ignore[call-overload]
    desc.forward("q")  # type: ignore[call-overload]
    desc.forward(q, position=k)  # type: ignore[call-overload]
    desc.forward(q, norm=q, cache=librope.Norm())  # type: ignore[call-overload]
    desc.backward(q, norm=librope.Norm())  # type: ignore[call-overload]
    desc.forward(q, out=q, accumulate=True)  # type: ignore[call-overload]
    desc.backward(q, table_rows="by_row")  # type: ignore[call-overload]


def gates(desc: librope.SwigluDesc, gate: Array, up: torch.Tensor, rows: jax.Array) -> None:
    assert_type(desc.forward(gate, gate), Array)
    assert_type(desc.forward(up, up, out=up), torch.Tensor)
    assert_type(desc.backward(gate, gate, up), Tuple[Array, torch.Tensor])
    assert_type(desc.backward(gate, gate, up, row_scale=rows), Tuple[Array, torch.Tensor, jax.Array])
    assert_type(desc.explain(gate, up, grad_out=rows), str)
    assert_type(librope.swiglu(rows, rows), jax.Array)
    assert_type(librope.swiglu(up, up, row_scale=up, alpha=1.702), torch.Tensor)
    assert_type(desc.forward(gate, gate, gate_bias=gate, up_bias=gate, expert_rows=rows), Array)
    assert_type(desc.backward(up, up, up, gate_bias=up, expert_rows=rows), Tuple[torch.Tensor, torch.Tensor])
    assert_type(librope.swiglu(gate, up, activation="geglu-tanh", limit_rule="activation", up_bias=up), Array)
    assert_type(librope.swiglu_backward(gate, gate, up, limit=7.0), Tuple[Array, torch.Tensor])
    assert_type(
        librope.swiglu_backward(gate, gate, up, activation="reglu", gate_softcap=2.0, product_rounding=True),
        Tuple[Array, torch.Tensor])
    librope.swiglu_backward(gate, gate, up, activation="gelu")  # type: ignore[call-overload]
    assert_type(librope.swiglu_backward(gate, gate, up, row_scale=rows), Tuple[Array, torch.Tensor, jax.Array])
    # An output that is switched off is None.
    grads = librope.swiglu_backward(gate, gate, up, grad_gate=False)
    assert grads[1] is not None
    librope.swiglu_backward(gate, gate, up, beta=1.0)  # type: ignore[call-overload]
    column = librope.SwigluColumn(gate, rows, power_of_two=True)
    assert_type(desc.forward(gate, up, column=column), Array)
    assert_type(librope.swiglu(up, up, limit=7.0, quant=librope.SwigluQuant(up), column=column), torch.Tensor)
    desc.forward(gate, up, False, column=column)
    assert_type(
        desc.backward(gate, gate, up, quant=librope.SwigluQuant(grad_up_scales_out=up), column=column),
        Tuple[Array, torch.Tensor])
    desc.forward(gate, up, True)  # type: ignore[call-overload]
    desc.forward(gate, up, column=librope.SwigluQuant())  # type: ignore[call-overload]


def operators(q: torch.Tensor) -> None:
    assert_type(librope.torch.apply_rotary(q, style="half", layout="thd", theta=1e4, q_pass=q), torch.Tensor)
    assert_type(librope.torch.apply_rotary(q, q, style="half", layout="thd"), Tuple[torch.Tensor, torch.Tensor])
    assert_type(librope.torch.apply_rotary(q, layout="thd", style="half", head_dim=64), torch.Tensor)
    librope.torch.apply_rotary(q, layout="thd", style="half", head_dim="64")  # type: ignore[call-overload]
    assert_type(
        librope.torch.apply_rotary(q, q, q, style="half", layout="thd"),
        Tuple[torch.Tensor, torch.Tensor, torch.Tensor])
    assert_type(
        librope.torch.rotary_step(q, k=q, style="half", layout="thd", norm="rms", cache=librope.Cache(q, slots=q)),
        Tuple[Optional[torch.Tensor], Optional[torch.Tensor], Optional[torch.Tensor]])
    librope.torch.rotary_step(q, style="half", layout="thd", cache=q)  # type: ignore[arg-type]
    assert_type(
        librope.torch.norm_rotary(q, q_weight=q, style="half", layout="thd", theta=1e4, norm_eps=1e-6), torch.Tensor)
    assert_type(
        librope.torch.norm_rotary(
            q, q, style="half", layout="bshd", norm="layer", norm_eps=1e-5, norm_extent="token", norm_order="after",
            q_bias=q, k_bias=q, positions=q),
        Tuple[torch.Tensor, torch.Tensor])
    assert_type(
        librope.torch.norm_rotary(q, v=q, style="half", layout="thd", norm_eps=1e-6), Tuple[torch.Tensor, torch.Tensor])
    assert_type(
        librope.torch.norm_rotary(q, q, q, style="half", layout="thd", norm_eps=1e-6, norm_tensors=("k", "v")),
        Tuple[torch.Tensor, torch.Tensor, torch.Tensor])
    librope.torch.norm_rotary(q, style="half", layout="thd")  # type: ignore[call-overload]
    librope.torch.norm_rotary(q, style="half", layout="thd", norm_eps=1.0, q_pass=q)  # type: ignore[call-overload]
    assert_type(librope.torch.swiglu(q, q), torch.Tensor)
    assert_type(librope.torch.swiglu(q, q, activation=librope.Activation.REGLU, gate_bias=q), torch.Tensor)
    assert_type(librope.torch.geglu(q, q, approximate="tanh", up_bias=q, limit=7.0), torch.Tensor)
    codes = torch.float8_e4m3fn
    assert_type(
        librope.torch.swiglu(q, q, out_dtype=codes, quant=librope.SwigluQuant(q), alpha=1.702), torch.Tensor)
    assert_type(
        librope.torch.swiglu(q, q, out_dtype=codes, group_size=128, scale_dtype=torch.float8_e8m0fnu),
        Tuple[torch.Tensor, torch.Tensor])
    assert_type(
        librope.torch.geglu(q, q, "tanh", out_dtype=codes, group_size=128), Tuple[torch.Tensor, torch.Tensor])
    assert_type(librope.torch.swiglu_codes(q, q, by_row=False, limit=7.0), librope.torch.SwigluCodes)
    assert_type(
        librope.torch.swiglu_gradients(q, q, q, row_scale=q, grad_row_scale=q, scale_layout="128x4"),
        Tuple[librope.torch.SwigluCodes, librope.torch.SwigluCodes])
    librope.torch.swiglu_codes(q, q, quant=librope.SwigluQuant(q))  # type: ignore[call-arg]
    librope.torch.swiglu(q, q, quant=librope.Quant(q))  # type: ignore[call-overload]
    librope.torch.geglu(q, q, approximate="erf")  # type: ignore[call-overload]
    librope.torch.geglu(q, q, alpha=1.702)  # type: ignore[call-overload]
    librope.torch.apply_rotary(q, layout="thd")  # type: ignore[call-overload]
    librope.torch.apply_rotary(q, style="neox", layout="thd")  # type: ignore[call-overload]


def functions_of_others(q: torch.Tensor, offsets: torch.Tensor) -> None:
    assert_type(librope.torch.apply_rotary_pos_emb(q, q, q, q), Tuple[torch.Tensor, torch.Tensor])
    assert_type(librope.torch.apply_rotary_pos_emb(q, k=q, cos=q, sin=q, unsqueeze_dim=2)[0], torch.Tensor)
    librope.torch.apply_rotary_pos_emb(q, q, q, q, None)  # type: ignore[arg-type]
    librope.torch.apply_rotary_pos_emb(q, q, q, q, position_ids=q)  # type: ignore[call-arg]
    assert_type(librope.torch.apply_rotary_emb(q, q, q), torch.Tensor)
    assert_type(
        librope.torch.apply_rotary_emb(
            q, q, q, interleaved=True, inplace=True, seqlen_offsets=offsets, cu_seqlens=offsets, max_seqlen=7),
        torch.Tensor)
    librope.torch.apply_rotary_emb(q, q, q, seqlen_offsets=1.5)  # type: ignore[arg-type]
    librope.torch.apply_rotary_emb(q, q, q, conjugate=True)  # type: ignore[call-arg]


def modules(q: torch.Tensor, model: torch.nn.Linear) -> None:
    rotary = librope.torch.RotaryEmbedding(64, style="half", layout="bshd", theta=1e4)
    assert_type(rotary.forward(q), torch.Tensor)
    assert_type(rotary.forward(q, q, q, position_offset=3), Tuple[torch.Tensor, torch.Tensor])
    assert_type(rotary.forward(q, positions=q, cu_seqlens=q, start_positions=q), torch.Tensor)
    rotary.forward(q, offset=3)  # type: ignore[call-overload]
    librope.torch.RotaryEmbedding(64, style="neox", layout="bshd")  # type: ignore[arg-type]
    librope.torch.RotaryEmbedding(64, style="half", layout="hsd")  # type: ignore[arg-type]
    librope.torch.RotaryEmbedding(64, layout="bshd")  # type: ignore[call-arg]
    librope.torch.RotaryEmbedding(64, style="half", layout="bshd", out_style="neox")  # type: ignore[arg-type]
    assert_type(librope.torch.SwiGLU(12, 20, bias=False, packed=True, dtype=torch.bfloat16).forward(q), torch.Tensor)
    librope.torch.SwiGLU(12, 20, dtype="bf16")  # type: ignore[arg-type]
    librope.torch.SwiGLU(12)  # type: ignore[call-arg]
    assert_type(librope.transformers.patch(model), torch.nn.Linear)
    librope.transformers.unpatch("llama")  # type: ignore[type-var]


def configs() -> None:
    librope.RopeDesc(head_dim=64, style="half", layout="bshd", dtype="bf16", out_style="interleaved")
    librope.RopeDesc(head_dim=64, style=librope.Style.HALF, layout=librope.Layout.THD, dtype=librope.Dtype.F32)
    librope.RopeDesc(head_dim=64, style="half", layout="thd", dtype=torch.bfloat16, device=torch.device("cpu"))
    librope.RopeDesc(head_dim=64, style="half", layout="thd", dtype=numpy.float32)
    librope.RopeDesc(head_dim=64, style="half", layout="thd", dtype=numpy.dtype("float32"))
    librope.RopeDesc(head_dim=64, style="half", layout="thd", dtype=jax.numpy.bfloat16)
    librope.RopeDesc(
        head_dim=64, style="half", layout="thd", dtype="f32", norm="rms", norm_tensors=("q", "k"), norm_order="after",
        norm_extent=librope.NormExtent.TOKEN, norm_rounding=["before_weight"], norm_eps=1e-6,
        quant_rounding="first")
    librope.RopeDesc(
        head_dim=64, style="half", layout="thd", dtype="f32", norm="batch")  # type: ignore[arg-type]
    librope.SwigluDesc(dtype="float16")
    librope.RopeDesc(head_dim=64, style="neox", layout="thd", dtype="f32")  # type: ignore[arg-type]
    librope.RopeDesc(head_dim=64, style="half", layout="hdt", dtype="f32")  # type: ignore[arg-type]
    librope.RopeDesc(head_dim=64, style="half", layout="thd", dtype="f31")  # type: ignore[arg-type]
    librope.SwigluDesc(dtype="f32", activation="geglu_erf", limit_rule=librope.LimitRule.ACTIVATION, up_softcap=1.0)
    librope.SwigluDesc(dtype="f32", quant_rounding=["first"])
    librope.SwigluQuant(scale_layout="8x4")  # type: ignore[arg-type]
    librope.SwigluDesc(dtype="f32", limit_rule="up")  # type: ignore[arg-type]
    librope.SwigluDesc(dtype="f31")  # type: ignore[arg-type]
    assert_type(librope.scaled_frequencies(64, 1e4, type="yarn", factor=4.0).attention_scale, float)
    librope.scaled_frequencies(64, 1e4, type="yarns")  # type: ignore[arg-type]
    librope.section_axes(64, 1e4, type="chunks", section=[16, 16])  # type: ignore[arg-type]
