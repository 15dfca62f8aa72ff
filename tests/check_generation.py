"""Does the slot cache say what a forward pass over everything says? For any model, on any device.

    python tests/check_generation.py MODEL --dtype bfloat16 --conversations 16

Conversations of several turns are sampled in a crowd; then each is read whole, and log-probabilities and values are compared with those
that were recorded. In float32 they agree to about 1e-4; in bfloat16 and 4 bits to what these hold.
"""
import argparse
import asyncio
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import agent
import buffer
import errors
from buffer import OWN, SYSTEM


async def talk(local, name, turns):
    """One conversation about nothing."""
    chance = random.Random(name)
    t = buffer.Trajectory(id=name, task=name)
    t.add("You keep house. Answer in a few words.", SYSTEM, "instruction")
    t.add(f"You are in room {chance.randint(1, 9)}. What do you do?", SYSTEM, "task")
    for _ in range(turns):
        t.add("Action:", SYSTEM, "prompt")
        await local.reply(t, "act")
        t.add(" ".join(chance.choices("you see a mug desk lamp and door nothing happens".split(), k=chance.randint(3, 20))), SYSTEM,
              "observation")
    local.close(t)
    return t


def main():
    p = argparse.ArgumentParser(description="Compare the slot cache with whole forward passes.")
    p.add_argument("model")
    p.add_argument("--dtype", choices=["float32", "bfloat16"])
    p.add_argument("--load-4bit", action="store_true")
    p.add_argument("--conversations", type=errors.count, default=8)
    p.add_argument("--turns", type=errors.count, default=3)
    p.add_argument("--threads", type=errors.count, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    policy, tokenizer = agent.load(args.model, dtype=args.dtype, four_bit=args.load_4bit)
    local = agent.LocalAgent(policy.eval(), tokenizer, "model", args.conversations, 1024, 16)

    async def crowd():
        return await asyncio.gather(*(talk(local, str(i), args.turns) for i in range(args.conversations)))
    started = time.perf_counter()
    trajectories = asyncio.run(crowd())
    seconds, worst, values = time.perf_counter() - started, [], 0.0
    for t in trajectories:
        flat = buffer.flatten(t)
        tokens = torch.tensor([flat["tokens"]], device=local.device)
        keep = torch.tensor([[m == OWN for m in flat["mask"]]], device=local.device)
        with torch.inference_mode():
            logits, value = policy(tokens, keep)
        logp = torch.log_softmax(logits, -1).gather(-1, tokens[keep][:, None])[:, 0]
        own = [i for i, m in enumerate(flat["mask"]) if m == OWN]
        worst.append((logp.cpu() - torch.tensor([flat["logprobs"][i] for i in own])).abs())
        values = max(values, (value.cpu() - torch.tensor([flat["values"][i] for i in own])).abs().max().item())
    worst = torch.cat(worst)
    memory = torch.cuda.max_memory_allocated() >> 20 if local.device.type == "cuda" else 0
    print(f"{args.model} ({policy.lm_head.weight.dtype}, {local.device}): {len(worst)} sampled tokens, {len(worst) / seconds:.1f} a second; "
          f"log-probabilities differ by {worst.mean():.2g} on the mean, {worst.max():.2g} at most, values by {values:.2g}"
          + (f"; peak {memory:,} MiB" if memory else ""))


if __name__ == "__main__":
    errors.run(main)
