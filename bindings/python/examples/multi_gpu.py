# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel and context parallel RoPE over several GPUs: each equals the whole on one device, bit for bit.

    python3 multi_gpu.py                             starts a process for each of two GPUs
    torchrun --nproc-per-node 4 multi_gpu.py         joins the processes that torchrun started

The rotation needs no communication. A token's angles depend on its position alone, so a rank with some of the heads, or
some of the tokens, rotates these: heads with the same call, tokens with their own positions. Only the comparison sends
data, through NCCL.

It needs torch and two GPUs; it exits with 77 without them, with 1 if a result differs. With --cpu it runs on the CPU,
through Gloo.
"""
import datetime
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed
    import torch.multiprocessing
except ImportError as error:
    print(f"skipped: needs torch: {error}")
    sys.exit(77)

import librope
from librope.torch import apply_rotary

BATCH, TOKENS, Q_HEADS, K_HEADS, HEAD_DIM = 2, 1024, 32, 8, 128  # 2, 4 or 8 ranks share these evenly
ROPE = dict(style="half", layout="bshd", theta=500000.0)
HEADS_AXIS, TOKENS_AXIS = 2, 1


def rotated(q, k, grad_q, grad_k, **positions):
    """The rotation of q and k, and the gradients that come back."""
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    outputs = apply_rotary(q, k, **ROPE, **positions)
    gradients = torch.autograd.grad(outputs, (q, k), (grad_q, grad_k))
    return [x.detach() for x in (*outputs, *gradients)]


def gathered(part, axis, order=None):
    """The parts of all ranks, joined along an axis. order: the index in the whole for each entry of the joined
    parts."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format)
             for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part.contiguous())
    whole = torch.cat(parts, dim=axis)
    return whole if order is None else whole.index_select(axis, order.argsort())


def compare(dtype, device):
    """Raises an error if the ranks' results differ from those of one device."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    tensors = [torch.randn(BATCH, TOKENS, heads, HEAD_DIM).to(device, dtype) for heads in (Q_HEADS, K_HEADS) * 2]
    whole = rotated(*tensors)

    def check(name, parts, axis, order=None):
        for tensor, part, expected in zip(("q", "k", "the gradient of q", "the gradient of k"), parts, whole):
            if not torch.equal(gathered(part, axis, order), expected):
                raise RuntimeError(f"{name}, {dtype}, rank {rank}: {tensor} differs from that of one device")
        if rank == 0:
            print(f"{name}, {dtype}: {ranks} ranks equal one device, forward and backward", flush=True)

    # Tensor parallel: each rank has the heads of its slice of the projections.
    check("tensor parallel heads", rotated(*(x.chunk(ranks, HEADS_AXIS)[rank] for x in tensors)), HEADS_AXIS)

    # Context parallel with a contiguous shard for each rank: its positions begin where the shard begins.
    check("context parallel shards",
          rotated(*(x.chunk(ranks, TOKENS_AXIS)[rank] for x in tensors), position_offset=rank * (TOKENS // ranks)),
          TOKENS_AXIS)

    # Context parallel with an early and a late shard for each rank, so that causal attention is shared evenly:
    # positions are data.
    def tokens_of(rank):
        chunks = torch.arange(TOKENS, device=device).chunk(2 * ranks)
        return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))

    mine = tokens_of(rank)
    check("context parallel zigzag shards",
          rotated(*(x.index_select(TOKENS_AXIS, mine) for x in tensors), positions=mine), TOKENS_AXIS,
          torch.cat([tokens_of(other) for other in range(ranks)]))


def run(rank, ranks, on_cpu, init_method):
    if K_HEADS % ranks or TOKENS % (2 * ranks):
        raise SystemExit(f"{ranks} ranks: {K_HEADS} heads and {2 * ranks} shards of {TOKENS} tokens must come out even")
    keywords = dict(init_method=init_method, timeout=datetime.timedelta(seconds=120))
    if init_method != "env://":
        keywords.update(rank=rank, world_size=ranks)
    if on_cpu:
        device = torch.device("cpu")
        torch.distributed.init_process_group("gloo", **keywords)
    else:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl", device_id=device, **keywords)
    for dtype in (torch.float32, torch.bfloat16):
        compare(dtype, device)
    torch.distributed.destroy_process_group()  # not after a failure: it could wait for the other ranks


def main():
    on_cpu = "--cpu" in sys.argv[1:]
    ranks = int(os.environ.get("WORLD_SIZE", 2))
    if not torch.distributed.is_available():
        print("skipped: needs torch.distributed")
        return 77
    if on_cpu:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    else:
        count = min(torch.cuda.device_count(), librope.device_count("cuda"))
        needed = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        if count < needed:
            why = librope.why_no_device()
            print(f"skipped: needs {needed} GPUs, there are {count}{f': {why}' if why else ''}")
            return 77
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        run(int(os.environ["RANK"]), ranks, on_cpu, "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                run, (ranks, on_cpu, f"file://{os.path.join(folder, 'rendezvous')}"), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
