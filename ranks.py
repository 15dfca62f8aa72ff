"""Several processes, one result: what the stages need of `torchrun` (LTC A.6). Alone, everything here is what it would be
without.

    torchrun --nproc_per_node 2 explore.py ...        torchrun --nproc_per_node 2 train.py ...
    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 train.py ...

Exploring, ranks draw tasks from one counter in the process group's own store, so that none waits for a share that was cut too
large. Training, each rank reads a share of every update; losses are sums over the update's tokens with the denominators of the
whole update, so gradients are added up, not averaged: the result is that of one process, however uneven the shares. Rank 0 alone
writes results.
"""
import itertools
import os

WORLD, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
STORE = []                          # the process group's store, once `start` has been called under torchrun


def start():
    """Join the other ranks, on a GPU each where there are GPUs. Alone: nothing."""
    if WORLD == 1:
        return
    import torch
    import torch.distributed as dist
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, world = next(dist.rendezvous("env://"))
    STORE.append(dist.PrefixStore("parley", store))
    backend, group = "cpu:gloo,cuda:nccl" if cuda else "gloo", dist.PrefixStore("group", store)
    dist.init_process_group(backend, store=group, rank=rank, world_size=world)


def end():
    """Leave: all ranks together."""
    if WORLD > 1:
        import torch.distributed as dist
        dist.barrier()
        dist.destroy_process_group()


def wait():
    """Until all ranks are here."""
    if WORLD > 1:
        import torch.distributed as dist
        dist.barrier()


def counter(name):
    """A function that gives 0, 1, 2, ..., each number to one rank alone."""
    if WORLD == 1:
        return itertools.count().__next__
    return lambda: STORE[0].add(name, 1) - 1


def share(samples):
    """This rank's share of an update's samples: every WORLD-th."""
    return samples[RANK::WORLD]


def add_up(parameters):
    """Add the gradients of all ranks, in place. Where no rank has one, there is none."""
    if WORLD == 1:
        return
    import torch
    import torch.distributed as dist
    parameters = list(parameters)
    there = torch.tensor([p.grad is not None for p in parameters], device=parameters[0].device).int()
    dist.all_reduce(there, dist.ReduceOp.MAX)
    parameters = [p for p, yes in zip(parameters, there.tolist()) if yes]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().float() for p in parameters])
    dist.all_reduce(flat)
    for p, grad in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = grad.view_as(p).to(p.dtype)


def together(value):
    """What every rank has, as a list in the order of ranks."""
    if WORLD == 1:
        return [value]
    import torch.distributed as dist
    found = [None] * WORLD
    dist.all_gather_object(found, value)
    return found
