"""Exploration speed: the slot cache against three ways to use Transformers' own generation, same agent, same tasks, in one run.

    python recipes/bench_explore.py --agent runs/demo/LTC-2 --episodes 64 --repeats 3

(a) one episode at a time, `generate` on the whole history for each reply;
(b) all episodes at once, `generate` on a left-padded batch of their whole histories for each round of replies;
(c) the same by continuous batching, `generate_batch`, whose manager stays and shares the pages of beginnings that it has seen.
(a) and (b) read everything again each turn. Prints episodes/s and sampled tokens/s, median (min - max) over the repeats, and ratios.
"""
import argparse
import asyncio
import logging
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import torch
import transformers

import agent
import speech
import envs
import errors
import explore


class Generate:
    """An agent that answers with `generate`, a function of one of the ways below: all waiting conversations in one batch."""

    def __init__(self, local, generate):
        self.local, self.generate, self.name = local, generate, local.name
        self.waiting, self.loop, self.tokens_sampled = [], None, 0

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
            for (_, future), tokens in zip(waiting, self.answers([t for t, _ in waiting])):
                future.set_result(tokens)
            await asyncio.sleep(0)

    def answers(self, trajectories):
        histories, stop = [], self.local.speech.stop("act")
        for t in trajectories:
            speech.encode_all(self.local.speech, t)
            histories.append([token for s in t.segments for token in s.tokens])
        config = transformers.GenerationConfig(max_new_tokens=self.local.max_tokens, do_sample=True, top_k=0, eos_token_id=sorted(stop),
                                               pad_token_id=self.local.tokenizer.pad_token_id)
        for row in self.generate(self.local.policy.model, histories, config):
            end = next((i for i, token in enumerate(row) if token in stop), len(row) - 1)
            self.tokens_sampled += end + 1
            yield row[:end + 1]

    def close(self, trajectory):
        """Nothing is remembered."""


def padded(model, histories, config):
    """(a) and (b): what `model.generate` answers to a left-padded batch."""
    width = max(map(len, histories))
    tokens = torch.tensor([[config.pad_token_id] * (width - len(h)) + h for h in histories])
    mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories])
    return model.generate(input_ids=tokens, attention_mask=mask, generation_config=config)[:, width:].tolist()


def continuous(model, histories, config):
    """(c): what `model.generate_batch` answers."""
    memory = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=2048, max_batch_tokens=2048, seed=0)
    found = model.generate_batch(histories, config, memory, persistent_manager=True, warmup=False)
    return [output.generated_tokens for output in found.values()]


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
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    policies = [agent.load(args.agent, dtype=args.dtype)[0].eval() for _ in range(2)]     # generate_batch changes its model
    tokenizer = agent.load(args.agent)[1]
    tasks = envs.tasks(args.env, "train", args.data, args.episodes, args.seed)
    ways = {"(a) generate, one by one": [], "(b) generate, left-padded batch": [], "(c) generate_batch": [], "slot cache": []}
    for repeat in range(args.repeats):
        for i, (name, runs) in enumerate(ways.items()):
            local = agent.LocalAgent(policies[i == 2], tokenizer, args.agent, args.slots, args.max_length, args.max_tokens, seed=repeat)
            who = local if i == 3 else Generate(local, continuous if i == 2 else padded)
            runs.append(timed(who, tasks[:args.single] if i == 0 else tasks, 1 if i == 0 else args.slots, args))
    print(f"{'':34}{'episodes/s':>26}{'sampled tokens/s':>34}{'slot cache is':>16}")
    for name, runs in ways.items():
        cells = ["{:,.2f} ({:,.2f} - {:,.2f})".format(statistics.median(x), min(x), max(x)) for x in zip(*runs)]
        ratio = statistics.median(s[1] / r[1] for s, r in zip(ways["slot cache"], runs))
        print(f"{name:34}{cells[0]:>26}{cells[1]:>34}{ratio:>14.1f} x")


if __name__ == "__main__":
    errors.run(main)
