"""How good is a critic, and what has training on its choice done to general conversation?

    python recipes/critic_report.py confusion runs/critic/noisy-1.scored.jsonl
        Of scored trajectories whose environment knows better: right and wrong ones called good (a score above 5) and bad,
        precision and recall, and the share of right ones among the best 5, 10, 25 and 50% by score.

    python recipes/critic_report.py chat recipes/chat.jsonl --agent base=runs/critic/base noisy=runs/critic/noisy-4
        Mean cross-entropy of the assistants' tokens of general conversations, for each agent.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import buffer
import errors
import others.chat
from errors import BadInput


def parse():
    p = argparse.ArgumentParser(description="Measure a critic, and what is forgotten.")
    p.add_argument("what", choices=["confusion", "chat"])
    p.add_argument("file", nargs="+", help="confusion: files of explore.py --critic; chat: a JSONL file of messages")
    p.add_argument("--agent", nargs="+", default=[], help="chat: checkpoints, each with an optional name: NAME=FOLDER")
    return p.parse_args()


def confusion(trajectories, good=5.0):
    """A critic (good: a score above `good`) against the environment: counts by (right, called good), precision and recall of
    "good" (None where nothing is)."""
    count = {(right, called): sum(t.success == right and (t.score > good) == called for t in trajectories)
             for right in (True, False) for called in (True, False)}
    called, right = count[True, True] + count[False, True], count[True, True] + count[True, False]
    return count, count[True, True] / called if called else None, count[True, True] / right if right else None


def selected(trajectories, share):
    """The share of right ones among the best."""
    chosen = buffer.select(trajectories, share)
    return len(chosen), sum(t.success for t in chosen) / len(chosen)


def chat_loss(policy, tokenizer, chats):
    """Mean cross-entropy of the assistants' tokens, in nats."""
    import torch

    import speech
    voice, losses = speech.speech_of(tokenizer), []
    for t in chats:
        speech.encode_all(voice, t)
        flat = buffer.flatten(t)
        tokens, keep = torch.tensor([flat["tokens"]]), torch.tensor([[m == buffer.OWN for m in flat["mask"]]])
        keep[:, 0] = False
        with torch.inference_mode():
            logits, _ = policy(tokens.to(policy.value_head.weight.device), keep.to(policy.value_head.weight.device))
        losses += torch.nn.functional.cross_entropy(logits.cpu(), tokens[keep], reduction="none").tolist()
    return sum(losses) / len(losses)


def main():
    args = parse()
    if args.what == "chat":
        import agent
        chats = [t for path in args.file for t in others.chat.read(path)]
        if not args.agent:
            raise BadInput("--agent: name at least one agent whose loss is to be measured")
        for entry in args.agent:
            name, _, folder = entry.rpartition("=")
            policy, tokenizer = agent.load(folder)
            loss = chat_loss(policy.eval(), tokenizer, chats)
            print(f"{name or folder}: {loss:.3f} nats a token on {len(chats)} conversations")
        return
    for path in args.file:
        trajectories = buffer.read(path)
        if any(t.score is None for t in trajectories):
            raise BadInput(f"{path}: not all trajectories have a score; explore.py --criticise {path} --critic ... gives one")
        count, precision, recall = confusion(trajectories)
        share = lambda x: "-" if x is None else f"{x:.1%}"                          # noqa: E731
        print(f"{path}: {len(trajectories)} trajectories, {sum(t.score < 0 for t in trajectories)} without a score")
        print(f"  right: {count[True, True]} called good, {count[True, False]} bad; wrong: {count[False, True]} called good, "
              f"{count[False, False]} bad; precision {share(precision)}, recall {share(recall)}")
        best = (f"{p:.0%}: {share(right)} of {n}" for p in (0.05, 0.1, 0.25, 0.5) for n, right in [selected(trajectories, p)])
        print("  right among the best " + ", ".join(best))


if __name__ == "__main__":
    errors.run(main)
