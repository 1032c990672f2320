"""Tensor parallel and context parallel RoPE over two GPUs: each equals the whole on one device, bit for bit.

The rotation needs no communication. A token's angles depend on its position alone, so a rank that holds some of the
heads, or some of the tokens, rotates what it holds: heads with the same call, tokens with their own positions. All that
is sent here is the comparison.

Needs torch and two GPUs; exits 77 without them. With --cpu it runs two processes on the CPU.
"""
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed
except ImportError as error:
    print(f"skipped: needs torch: {error}")
    sys.exit(77)

import librope
from librope.torch import apply_rotary

RANKS = 2
BATCH, TOKENS, Q_HEADS, K_HEADS, HEAD_DIM = 2, 4096, 16, 4, 128
ROPE = dict(style="half", layout="bshd", theta=500000.0)
HEADS_AXIS, TOKENS_AXIS = 2, 1


def gathered(part, axis, order=None):
    """The whole of everybody's parts along an axis; order: the index that each entry of it has in the whole."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(RANKS)]
    torch.distributed.all_gather(parts, part.contiguous())
    whole = torch.cat(parts, dim=axis)
    return whole if order is None else whole.index_select(axis, order.argsort())


def run(rank, on_cpu, rendezvous):
    device = torch.device("cpu") if on_cpu else torch.device("cuda", rank)
    if not on_cpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "gloo" if on_cpu else "nccl", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    q, k, grad_q, grad_k = (torch.randn(BATCH, TOKENS, heads, HEAD_DIM) for heads in (Q_HEADS, K_HEADS) * 2)
    q, k, grad_q, grad_k = (x.to(device) for x in (q, k, grad_q, grad_k))

    def rotated(q, k, grad_q, grad_k, **positions):
        """The rotation of q and k, and the gradients that come back."""
        q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
        outputs = apply_rotary(q, k, **ROPE, **positions)
        return (*outputs, *torch.autograd.grad(outputs, (q, k), (grad_q, grad_k)))

    tensors = q, k, grad_q, grad_k
    whole = rotated(*tensors)

    def check(name, parts, axis, order=None):
        for part, expected in zip(parts, whole):
            assert torch.equal(gathered(part.detach(), axis, order), expected.detach()), name
        if rank == 0:
            print(f"{name}: {RANKS} ranks equal one device, forward and backward")

    # Tensor parallel: each rank has the heads of its slice of the projections.
    check("tensor parallel heads", rotated(*(x.chunk(RANKS, HEADS_AXIS)[rank] for x in tensors)), HEADS_AXIS)

    # Context parallel, a contiguous shard each: its positions begin where the shard begins.
    shard = TOKENS // RANKS
    check("context parallel shards",
          rotated(*(x.chunk(RANKS, TOKENS_AXIS)[rank] for x in tensors), position_offset=rank * shard), TOKENS_AXIS)

    # Context parallel, an early and a late shard each, so that causal attention is shared out evenly: positions are
    # data.
    def tokens_of(rank):
        chunks = torch.arange(TOKENS, device=device).chunk(2 * RANKS)
        return torch.cat((chunks[rank], chunks[2 * RANKS - 1 - rank]))

    mine = tokens_of(rank)
    check("context parallel zigzag shards",
          rotated(*(x.index_select(TOKENS_AXIS, mine) for x in tensors), positions=mine), TOKENS_AXIS,
          torch.cat([tokens_of(other) for other in range(RANKS)]))
    torch.distributed.destroy_process_group()


def main():
    on_cpu = "--cpu" in sys.argv[1:]
    if not torch.distributed.is_available():
        print("skipped: needs torch.distributed")
        return 77
    if on_cpu:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    else:
        count = min(torch.cuda.device_count(), librope.device_count("cuda"))
        if count < RANKS:
            why = librope.why_no_device()
            print(f"skipped: needs {RANKS} GPUs, there are {count}{f': {why}' if why else ''}")
            return 77
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (on_cpu, os.path.join(folder, "rendezvous")), nprocs=RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
