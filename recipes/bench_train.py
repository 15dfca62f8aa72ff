"""Training speed and memory: one update as train.py does it, against the obvious one, on the same tokens.

    python recipes/bench_train.py --agent runs/demo/it --data runs/demo/demos.jsonl

(a) full logits, padded: one forward of the batch, padded to its longest trajectory, logits of every token, as a training loop
usually has it
(b) the same in micro-batches in the order of the data
(c) TRL's SFTTrainer, with the micro-batches of (b), if --trl names a Python where `pip install trl==1.16.0` was done
parley: micro-batches of like length, logits only for tokens that the loss weights

Each way runs in a process of its own, for its peak memory; updates are the same in all. Ratios are medians over --repeats, least
and most beside them. What is read but not weighted is counted as a token in all of them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import errors

WAYS = ("full logits, padded", "full logits, micro-batches", "TRL SFTTrainer", "parley")


def measure(args):
    """In a process of its own: tokens/s and MiB above what was there before, of one way."""
    import torch

    import buffer
    import train
    options = train_options(args)
    torch.set_num_threads(args.threads)
    policy, tokenizer = train.start(options, None)
    samples = train.load_samples(options, tokenizer)[:args.updates * args.batch_size]
    with open(args.samples, "w", encoding="utf-8") as file:
        json.dump([{"tokens": s["tokens"], "lm": s["lm"]} for s in samples], file)
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-5)
    if args.gradient_checkpointing:
        policy.trunk.activation_checkpointing_enable({"use_reentrant": False})
    policy.train()
    device, before = next(policy.parameters()).device, train.peak_memory()
    rates = []
    for i in range(0, len(samples), args.batch_size):
        batch, started = samples[i:i + args.batch_size], time.perf_counter()
        if args.way == "parley":
            train.update(policy, optimizer, batch, options, device)
        else:
            size = args.batch_size if args.way == WAYS[0] else args.micro_batch
            total = sum(sum(s["lm"][1:]) for s in batch)
            for j in range(0, len(batch), size):
                b = {name: x.to(device) for name, x in buffer.collate(batch[j:j + size]).items()}
                last, _ = policy.read(b["tokens"])
                logits = policy.lm_head(last).float()                                                      # [B, T, V]
                wanted = b["tokens"][:, 1:].flatten()
                loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted, reduction="none")
                ((loss * b["lm"][:, 1:].flatten()).sum() / total).backward()
            torch.nn.utils.clip_grad_norm_([p for p in policy.parameters() if p.requires_grad], 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        rates.append(sum(len(s["tokens"]) for s in batch) / (time.perf_counter() - started))
    print(json.dumps({"rate": statistics.median(rates), "memory": train.peak_memory() - before}))


def train_options(args):
    """The arguments of the training that is measured."""
    import unittest.mock

    import train
    words = ["train.py", "--agent", args.agent, "--data", args.data, "--out", "x", "--loss", "lm", "--max-length",
             args.max_length, "--batch-size", args.batch_size, "--micro-batch", args.micro_batch]
    words += ["--lora-rank", 16, "--lora-target", "q_proj", "v_proj"] if args.lora else []
    with unittest.mock.patch.object(sys, "argv", [str(word) for word in words]):
        return train.parse()


def main():
    p = argparse.ArgumentParser(description="Training speed and memory.")
    p.add_argument("--agent", required=True, help="a checkpoint")
    p.add_argument("--data", required=True, help="trajectories, some of them with a positive reward")
    p.add_argument("--updates", type=errors.count, default=6)
    p.add_argument("--batch-size", type=errors.count, default=32)
    p.add_argument("--micro-batch", type=errors.count, default=8)
    p.add_argument("--max-length", type=errors.count, default=1024)
    p.add_argument("--repeats", type=errors.count, default=3)
    p.add_argument("--threads", type=errors.count, default=1)
    p.add_argument("--lora", action="store_true", help="train an adapter on q and v")
    p.add_argument("--gradient-checkpointing", action="store_true")
    p.add_argument("--trl", help="a Python that has TRL")
    p.add_argument("--way", choices=WAYS, help="measure this one alone, and print it as JSON")
    p.add_argument("--samples", help="with --way: where the samples go, for --trl")
    args = p.parse_args()
    if args.way:
        measure(args)
        return
    ways = [way for way in WAYS if way != WAYS[2] or args.trl]
    found = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        samples = os.path.join(folder, "samples.json")
        for way in ways * args.repeats:
            words = [sys.executable, __file__, *sys.argv[1:], "--way", way, "--samples", samples]
            if way == WAYS[2]:
                words = [args.trl, os.path.join(os.path.dirname(__file__), "bench_trl.py"), "--agent", args.agent, "--samples", samples]
                words += ["--batch-size", str(args.batch_size), "--micro-batch", str(args.micro_batch), "--threads", str(args.threads)]
                words += ["--lora"] * args.lora + ["--gradient-checkpointing"] * args.gradient_checkpointing
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{done.stderr}error: {way}: exit status {done.returncode}"
                         f"{' (killed: too little memory? give a smaller --batch-size)' if done.returncode == -9 else ''}")
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'':30}{'tokens/s':>28}{'peak MiB':>22}{'parley: speed':>16}{'memory':>10}")
    for way, runs in found.items():
        rates, memories = [r["rate"] for r in runs], [r["memory"] for r in runs]
        faster = statistics.median(ours["rate"] / r["rate"] for ours, r in zip(found["parley"], runs))
        smaller = statistics.median(ours["memory"] / max(r["memory"], 1) for ours, r in zip(found["parley"], runs))
        print(f"{way:30}{f'{statistics.median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f})':>28}"
              f"{f'{statistics.median(memories):,.0f} ({min(memories):,.0f} - {max(memories):,.0f})':>22}"
              f"{faster:>14.2f} x{smaller:>8.2f} x")


if __name__ == "__main__":
    errors.run(main)
