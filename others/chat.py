"""General conversations, to mix with what is trained on (weak supervision §2.4), as the usual JSONL of messages."""
import json
import random

from buffer import OWN, SYSTEM, Trajectory, open_text
from errors import BadInput


def read(path):
    """General conversations of a JSONL file of {"messages": [{"role": "user", "content": ...}, ...]}, as trajectories whose
    assistant is the agent. Raises BadInput for a line that is none."""
    found = []
    for number, line in enumerate(open_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        t = Trajectory(id=f"chat/{number}", task=f"chat/{number}", pattern="chat", reward=1.0, success=True)
        try:
            for message in json.loads(line)["messages"]:
                role = {"system": "instruction", "user": "task", "assistant": "act"}[message["role"]]
                t.add(message["content"] + "", OWN if role == "act" else SYSTEM, role)
            if not any(s.source == OWN for s in t.segments):
                raise ValueError("no assistant speaks in it")
            t.segments[-1].reward = 1.0
            found.append(t)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadInput(f'{path}:{number}: no conversation ({type(error).__name__}: {error}); a line is {{"messages": [...]}} '
                           "with roles system, user and assistant") from None
    if not found:
        raise BadInput(f"{path}: there is no conversation in it")
    return found


def mixed(chats, n, seed=0):
    """n of the conversations, at random, all of them before any comes again."""
    order = random.Random(f"mix {seed}").sample(chats, len(chats))
    return [order[i % len(order)] for i in range(n)]
