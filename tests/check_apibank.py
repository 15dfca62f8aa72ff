"""Official API-Bank dialogues: do all parse, does each recorded call survive printing and parsing, is it right, and each
corruption of it wrong? With a checkout, too: what do the official tools say to the recorded calls?

    python tests/check_apibank.py DIR                      DIR holds level-1-given-desc and level-2-toolsearcher
    python tests/check_apibank.py DIR CHECKOUT             CHECKOUT: the folder api-bank of github.com/AlibabaResearch/DAMO-ConvAI
"""
import argparse
import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import errors
from envs import apibank
from envs.apibank_calls import parse_call, print_call


def corruptions(name, arguments):
    """The call with one thing changed: its name; an argument's name or value; an argument missing."""
    yield name + "s", arguments
    for key, value in arguments.items():
        rest = {k: v for k, v in arguments.items() if k != key}
        yield name, rest
        yield name, {**rest, key + "s": value}
        yield name, {**rest, key: "something else entirely"}


def main():
    p = argparse.ArgumentParser(description="Check official API-Bank dialogues.")
    p.add_argument("data", help="the folder that holds level-1-given-desc and level-2-toolsearcher")
    p.add_argument("checkout", nargs="?", help="the folder api-bank of a checkout, to run its tools, too")
    args = p.parse_args()
    data, checkout = args.data, args.checkout
    dialogues = calls = 0
    found, official = collections.Counter(), collections.Counter()
    for folder in apibank.LEVELS.values():
        for file in sorted((Path(data) / folder).glob("*.jsonl")):
            dialogues += 1
            for turn in apibank.read_dialogue(file):
                if turn["role"] != "API":
                    continue
                calls += 1
                name, arguments = turn["api_name"], turn["param_dict"]
                found["read back"] += parse_call(print_call(name, arguments)) == (name, arguments)
                found["right"] += apibank.right(name, arguments, turn)
                for other, changed in corruptions(name, arguments):
                    found["corruptions"] += 1
                    found["corruptions called wrong"] += not apibank.right(other, changed, turn)
                if checkout:
                    said = apibank.official(checkout).ask(name=name, arguments=arguments, result=turn["result"])
                    official[next((f"{k}: {said[k]}" for k in ("absent", "right") if k in said), "refused")] += 1
    print(f"{dialogues} dialogues, {calls} calls: {dict(found)}")
    if checkout:
        print(f"official tools: {dict(official)}")


if __name__ == "__main__":
    errors.run(main)
