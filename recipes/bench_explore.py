"""Exploration speed: the slot cache against the two obvious ways to use `model.generate`, same agent, same tasks, in one run.

    python recipes/bench_explore.py --agent runs/demo/LTC-2 --episodes 64 --repeats 3

(a) one episode at a time, `generate` on the whole history for each reply;
(b) all episodes at once, `generate` on a left-padded batch of their whole histories for each round of replies.
Both read everything again each turn. Prints episodes/s and sampled tokens/s, median (min - max) over the repeats, and ratios.
"""
import argparse
import asyncio
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import torch

import agent
import speech
import envs
import errors
import explore


class Generate:
    """An agent that answers with `model.generate`: all waiting conversations in one left-padded batch, nothing remembered."""

    def __init__(self, local):
        self.local, self.name, self.waiting, self.loop, self.tokens_sampled = local, local.name, [], None, 0

    async def reply(self, trajectory, role, source=agent.OWN):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((trajectory, future))
        if self.loop is None or self.loop.done():
            self.loop = asyncio.create_task(self.serve())
        tokens = await future
        segment = trajectory.add(speech.decode(self.local.tokenizer, tokens, role), source, role)
        segment.tokens = tokens
        return segment

    async def serve(self):
        while self.waiting:
            waiting, self.waiting = self.waiting, []
            for (_, future), tokens in zip(waiting, self.generate([t for t, _ in waiting])):
                future.set_result(tokens)
            await asyncio.sleep(0)

    def generate(self, trajectories):
        local, histories = self.local, []
        for t in trajectories:
            speech.encode_all(local.speech, t)
            histories.append([token for s in t.segments for token in s.tokens])
        width, pad = max(map(len, histories)), local.tokenizer.pad_token_id
        tokens = torch.tensor([[pad] * (width - len(h)) + h for h in histories])
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories])
        found = local.policy.model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=local.max_tokens, do_sample=True, top_k=0,
            eos_token_id=sorted(local.speech.stop("act")), pad_token_id=pad)[:, width:].tolist()
        replies = []
        for row in found:
            end = next((i for i, token in enumerate(row) if token in local.speech.stop("act")), len(row) - 1)
            replies.append(row[:end + 1])
            self.tokens_sampled += end + 1
        return replies

    def close(self, trajectory):
        """Nothing is remembered."""


def timed(agent_, tasks, slots, args):
    """(episodes/s, sampled tokens/s) of one exploration."""
    before, started = agent_.tokens_sampled, time.perf_counter()
    options = argparse.Namespace(**{**vars(args), **explore.ALONE, "slots": slots, "temperature": 1.0, "out": "bench"})
    asyncio.run(explore.play(tasks, agent_, None, options))
    seconds = time.perf_counter() - started
    return len(tasks) / seconds, (agent_.tokens_sampled - before) / seconds


def main():
    p = argparse.ArgumentParser(description="Exploration speed against model.generate.")
    p.add_argument("--agent", required=True, help="a checkpoint directory")
    p.add_argument("--episodes", type=int, default=64, help="episodes of the batched ways")
    p.add_argument("--single", type=int, default=6, help="episodes of one at a time")
    p.add_argument("--repeats", type=int, default=3, help="how often")
    explore.add_arguments(p)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    policy, tokenizer = agent.load(args.agent)
    tasks = envs.tasks(args.env, "train", args.data, args.episodes, args.seed)
    ways = {"(a) generate, one by one": [], "(b) generate, left-padded batch": [], "slot cache": []}
    for repeat in range(args.repeats):
        def local():
            return agent.LocalAgent(policy.eval(), tokenizer, args.agent, args.slots, args.max_length, args.max_tokens,
                                    seed=repeat)  # noqa: B023
        ways["(a) generate, one by one"].append(timed(Generate(local()), tasks[:args.single], 1, args))
        ways["(b) generate, left-padded batch"].append(timed(Generate(local()), tasks, args.slots, args))
        ways["slot cache"].append(timed(local(), tasks, args.slots, args))
    print(f"{'':34}{'episodes/s':>26}{'sampled tokens/s':>34}{'slot cache is':>16}")
    for name, runs in ways.items():
        cells = ["{:,.2f} ({:,.2f} - {:,.2f})".format(statistics.median(x), min(x), max(x)) for x in zip(*runs)]
        ratio = statistics.median(s[1] / r[1] for s, r in zip(ways["slot cache"], runs))
        print(f"{name:34}{cells[0]:>26}{cells[1]:>34}{ratio:>14.1f} x")


if __name__ == "__main__":
    errors.run(main)
