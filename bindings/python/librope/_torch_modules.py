# SPDX-License-Identifier: Apache-2.0
# _torch_modules.py - librope.torch in the shapes of other libraries: functions to import instead of theirs, and modules
from __future__ import annotations

import reprlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Tuple, Union, overload

import torch
from torch import Tensor

from ._constants import constant
from ._enums import ACTIVATIONS, LAYOUTS, STYLES, Activation, Layout, Style, number_of
from ._rope import RopeDesc, as_list
from ._tensors import why_no_memory
from ._torch_operators import is_transformed, num_threads_for
from ._types import AnyActivation, AnyLayout, AnyStyle, Operands, TorchPositions
from .torch import apply_rotary, swiglu

if TYPE_CHECKING:
    from typing_extensions import Unpack

# ---- Functions ------------------------------------------------------------------------------------------------------

_LAYOUTS = {(4, -3): Layout.BHSD, (4, -2): Layout.BSHD, (3, -2): Layout.THD}  # by q's axes, and that of its heads


def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tuple[Tensor, Tensor]:
    """Replaces transformers' function of this name (Llama, Qwen, Mistral, Gemma and Phi): pairs of the "half" style.

    q, k:          [B, H, S, D], [B, S, H, D] or [T, H, D], of one dtype; any strides, H of each its own
    cos, sin:      [B, S, R], [1, S, R] or [S, R], both of any one floating dtype: a column for each channel. R is at
                   most D; channels from R on pass through, as in Phi-3 and GPT-NeoX. Tables with a column for each
                   pair, as in gpt-oss, would be those of R = D/2: pass each column twice, or call apply_rotary
    unsqueeze_dim: the axis of the heads of q and k, which cos and sin lack

    Returns new tensors. Their dtype is the one to which torch promotes that of q and k with that of cos. Gradients flow
    to q and k. Raises ValueError if cos and sin require grad, or if unsqueeze_dim is not the axis of the heads.
    Models with other pairs in their function of this name, such as Cohere and GLM, need apply_rotary."""
    if type(unsqueeze_dim) is not int:  # transformers 4 had position_ids at this place
        raise TypeError(f"apply_rotary_pos_emb: unsqueeze_dim is {unsqueeze_dim!r}: it must be an int")
    heads = unsqueeze_dim if unsqueeze_dim < 0 else unsqueeze_dim - (cos.dim() + 1)
    layout = _LAYOUTS.get((q.dim(), heads))
    if layout is None:
        raise ValueError(
            f"apply_rotary_pos_emb: unsqueeze_dim is {unsqueeze_dim}: for q of {q.dim()} axes and cos of {cos.dim()} "
            "it must be the axis of the heads, the second or, of four, the third from the end")
    return apply_rotary(
        q.to(torch.promote_types(q.dtype, cos.dtype)), k.to(torch.promote_types(k.dtype, cos.dtype)),
        style=Style.HALF, layout=layout, rotary_dim=cos.shape[-1], cos=cos, sin=sin, table_rows="by_token")


def apply_rotary_emb(
        x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
        seqlen_offsets: Union[int, Tensor] = 0, cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None) -> Tensor:
    """Replaces flash-attn's function of this name.

    x:              [B, S, H, D], with cu_seqlens [T, H, D]; any strides
    cos, sin:       [M, R/2], R at most D, of any floating dtype: the row of a token is its index in its sequence plus
                    the offset. Channels from R on pass through
    interleaved:    pairs of the "interleaved" style, otherwise of the "half" style
    inplace:        writes to x, and returns it; uses a copy if a derivative is recorded
    seqlen_offsets: one for all sequences, or I32 or I64 [B]
    cu_seqlens:     I32 or I64 [B + 1]. Tokens past its last entry are 0 in new outputs
    max_seqlen:     if and only if there are cu_seqlens: the tokens of the longest sequence

    Returns a tensor of x's dtype. Gradients flow to x. Raises ValueError if cos and sin require grad, or if an offset
    plus the length of a sequence is beyond the tables. Tokens that offsets in a tensor move beyond the tables pass
    through.
    """
    if x.is_nested:
        raise TypeError(f"apply_rotary_emb: x: {why_no_memory(x)}")
    if cu_seqlens is not None and max_seqlen is None:
        raise ValueError("apply_rotary_emb: max_seqlen is None: it must be given with cu_seqlens")
    starts, offset = (seqlen_offsets, 0) if isinstance(seqlen_offsets, Tensor) else (None, seqlen_offsets)
    length = (max_seqlen or 0) if cu_seqlens is not None else x.shape[1] if x.dim() == 4 else 0
    if offset < 0 or offset + length > cos.shape[0]:
        raise ValueError(
            f"apply_rotary_emb: cos.shape[0] is {cos.shape[0]}: sequences of {length} tokens from seqlen_offsets "
            f"{offset} on must be inside")
    style = Style.INTERLEAVED if interleaved else Style.HALF
    layout = Layout.BSHD if cu_seqlens is None else Layout.THD
    rotary_dim = 2 * cos.shape[-1]
    operands: Operands = {
        "cos": cos, "sin": sin, "cu_seqlens": cu_seqlens, "start_positions": starts, "position_offset": offset}
    if inplace and not (
            torch.compiler.is_compiling() or is_transformed() or (x.requires_grad and torch.is_grad_enabled())):
        desc = _desc_of(x.dtype, x.shape[-1], style, layout, rotary_dim, num_threads_for(x))
        return desc.forward(x, out=x, **operands)
    result = apply_rotary(x, style=style, layout=layout, rotary_dim=rotary_dim, **operands)
    return x.copy_(result) if inplace else result


@lru_cache(maxsize=64)
def _desc_of(
        dtype: torch.dtype, head_dim: int, style: Style, layout: Layout, rotary_dim: int,
        num_threads: int) -> RopeDesc:
    return RopeDesc(
        head_dim=head_dim, style=style, layout=layout, dtype=dtype, rotary_dim=rotary_dim, num_threads=num_threads)


# ---- Modules --------------------------------------------------------------------------------------------------------


class RotaryEmbedding(torch.nn.Module):
    """One rotation for any number of calls. Every argument is RopeDesc's argument of that name:

        RotaryEmbedding(64, style="half", layout="bshd", theta=10000.0)
        RotaryEmbedding(64, style="half", layout="bshd", **librope.scaled_frequencies(64, 1e6, type="yarn",
            factor=4.0, original_max_position=32768)._asdict())
        RotaryEmbedding(**librope.from_hf_config(model.config), layout="bhsd")

    It has no parameters and no buffers: its state_dict is empty, and to(), half() and bfloat16() leave the frequencies
    exact. Raises what RopeDesc raises.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        style: AnyStyle,
        layout: AnyLayout,
        rotary_dim: int = 0,
        rotary_offset: int = 0,
        theta: float = 0.0,
        inv_freq: Optional[Sequence[float]] = None,
        attention_scale: float = 0.0,
        num_axes: int = 0,
        pair_axis: Optional[Sequence[int]] = None,
        pair_block: int = 0,
        out_style: AnyStyle = 0,
    ) -> None:
        super().__init__()
        arguments: Dict[str, Any] = dict(
            style=number_of(STYLES, "style", style), layout=number_of(LAYOUTS, "layout", layout),
            rotary_dim=rotary_dim, rotary_offset=rotary_offset, theta=theta,
            inv_freq=None if inv_freq is None else tuple(as_list(inv_freq)), attention_scale=attention_scale,
            num_axes=num_axes, pair_axis=None if pair_axis is None else tuple(as_list(pair_axis)),
            pair_block=pair_block, out_style=number_of(STYLES, "out_style", out_style))
        arguments = {name: constant(value) for name, value in arguments.items()}
        RopeDesc(head_dim=head_dim, dtype="f32", **arguments)  # raises if an argument is wrong
        self.head_dim = head_dim
        self._rotation = {name: value for name, value in arguments.items() if value}  # 0 stands for a default

    @overload
    def forward(
        self, q: Tensor, k: None = None, positions: Optional[Tensor] = None,
        **keywords: Unpack[TorchPositions]) -> Tensor: ...
    @overload
    def forward(
        self, q: Tensor, k: Tensor, positions: Optional[Tensor] = None,
        **keywords: Unpack[TorchPositions]) -> Tuple[Tensor, Tensor]: ...

    def forward(
        self,
        q: Tensor,
        k: Optional[Tensor] = None,
        positions: Optional[Tensor] = None,
        *,
        start_positions: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        position_offset: int = 0,
    ) -> Any:
        """Rotates q and k into new tensors: one for q alone, otherwise a tuple.

        q, k: [B, S, H, head_dim] in the order of the layout, "thd" [T, H, head_dim]; any strides, H of each its own
        positions: [T], [S], [B, S] or [1, S], a leading axis for num_axes above 1; None: the index in the sequence
        start_positions: [B]; cu_seqlens: [B + 1]
        The other arguments are those of RopeDesc.forward. Gradients flow to q and k.
        """
        if q.shape[-1] != self.head_dim:
            raise ValueError(f"RotaryEmbedding: q.shape[-1] is {q.shape[-1]}: it must be head_dim, {self.head_dim}")
        apply: Callable[..., Any] = apply_rotary  # a dict does not determine an overload
        return apply(
            q, k, positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens,
            position_offset=position_offset, **self._rotation)

    def extra_repr(self) -> str:
        enums = {"style": Style, "out_style": Style, "layout": Layout}
        shown = {name: enums[name](value).name.lower() if name in enums else value
                 for name, value in self._rotation.items()}
        shown = {"head_dim": self.head_dim, **shown}
        return ", ".join(f"{name}={reprlib.repr(value)}" for name, value in shown.items())


class SwiGLU(torch.nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), the MLP of Llama, with xformers' arguments, or with another
    activation.

    state_dict: gate_proj, up_proj [hidden_features, in_features] and down_proj [out_features, hidden_features], as the
                MLPs of Llama, Qwen and Mistral have them; packed=True gate_up_proj [2 * hidden_features, in_features],
                gate first, and down_proj, as in Phi-3; .weight of each, and .bias where bias is True
    out_features: None stands for in_features
    activation:   as for librope.torch.swiglu; "geglu_tanh" is Gemma's
    device, dtype: of the weights, as for torch.nn.Linear

    x [.., in_features] has 1 to 4 axes. The activation by itself is librope.torch.swiglu.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: Optional[int] = None,
        bias: bool = True,
        *,
        packed: bool = False,
        activation: AnyActivation = Activation.SWIGLU,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.packed = packed
        self.activation = Activation(number_of(ACTIVATIONS, "activation", activation))
        place: Dict[str, Any] = dict(bias=bias, device=device, dtype=dtype)
        if packed:
            self.gate_up_proj = torch.nn.Linear(in_features, 2 * hidden_features, **place)
        else:
            self.gate_proj = torch.nn.Linear(in_features, hidden_features, **place)
            self.up_proj = torch.nn.Linear(in_features, hidden_features, **place)
        out_features = in_features if out_features is None else out_features
        self.down_proj = torch.nn.Linear(hidden_features, out_features, **place)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        out: Tensor = self.down_proj(swiglu(gate, up, activation=self.activation))
        return out

    def extra_repr(self) -> str:
        return "" if self.activation is Activation.SWIGLU else f"activation={self.activation.name.lower()!r}"


for _public in (apply_rotary_pos_emb, apply_rotary_emb, RotaryEmbedding, SwiGLU):
    _public.__module__ = "librope.torch"  # pickles look the classes up there
