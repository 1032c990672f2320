# SPDX-License-Identifier: Apache-2.0
"""One training step of a small block of attention and MLP, with librope in forward and backward. The loss and the new
weights are compared with those of the same step in plain torch.

The program runs on the GPU if there is one. It needs torch; without it the exit status is 77.
"""
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: needs torch: {error}")
    sys.exit(77)
from torch.nn import functional

import librope
from librope.torch import apply_rotary, swiglu

TOKENS, HEADS, HEAD_DIM, INTERMEDIATE, THETA = 33, 4, 32, 256, 10000.0
HIDDEN = HEADS * HEAD_DIM


class Block(torch.nn.Module):
    def __init__(self, uses_librope):
        super().__init__()
        self.uses_librope = uses_librope
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.down = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def rotate(self, *tensors):
        """Returns rotated tensors. They are [batch, tokens, heads, head_dim], the layout "bshd"."""
        if self.uses_librope:
            return apply_rotary(*tensors, style="half", layout="bshd", theta=THETA)
        positions = torch.arange(tensors[0].shape[1], dtype=torch.float64)
        angles = positions[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
        cos, sin = (f(angles)[:, None].to(tensors[0]) for f in (torch.cos, torch.sin))  # [tokens, 1, pairs]
        halves = (x.chunk(2, dim=-1) for x in tensors)
        return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1) for a, b in halves)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(2)  # views of one packed tensor
        q, k = self.rotate(q, k)
        attention = functional.scaled_dot_product_attention(
            *(y.transpose(1, 2) for y in (q, k, v)), is_causal=True).transpose(1, 2)
        x = x + self.out(attention.flatten(-2))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return x + self.down(swiglu(gate, up) if self.uses_librope else functional.silu(gate) * up)


def train(uses_librope, device):
    """Returns the loss of a step, and the weights after it. Every call begins with the same weights and data."""
    torch.manual_seed(0)
    block = Block(uses_librope).to(device)
    x, target = (torch.randn(2, TOKENS, HIDDEN).to(device) for _ in range(2))
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    loss = functional.mse_loss(block(x), target)
    loss.backward()
    optimizer.step()
    return loss.item(), [parameter.detach() for parameter in block.parameters()]


on_gpu = torch.cuda.is_available() and librope.device_count("cuda") > 0
device = "cuda" if on_gpu else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False  # products in full fp32, so that the bound below holds
loss, weights = train(True, device)
plain_loss, plain_weights = train(False, device)
error = max((a - b).abs().max().item() for a, b in zip(weights, plain_weights))
assert abs(loss - plain_loss) < 1e-5 and error < 1e-5, (loss, plain_loss, error)
print(f"on the {'GPU' if on_gpu else 'CPU'}: loss {loss:.6f}, plain torch {plain_loss:.6f}, "
      f"weights after the step differ by at most {error:.1e}")
