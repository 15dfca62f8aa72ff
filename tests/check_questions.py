"""Check tool and metric on the official files: an oracle that searches the gold titles and answers with the key must score 100%.

    python tests/check_questions.py --hotpotqa DIR_OR_FILE --split dev
    python tests/check_questions.py --gsm8k DIR_OR_FILE --split train
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import errors
from envs import gsm8k, hotpotqa


def check_hotpotqa(data, split):
    """Search every gold title, look up a word of its supporting sentence, finish with the answer."""
    gold = {r["question"]: r for r in hotpotqa.read_records(hotpotqa.find_file(split, data))}
    tasks, found, opened, titles, score = hotpotqa.tasks(split, data), 0, 0, 0, 0.0
    for task in tasks:
        env = task.make(max_steps=None)
        record = gold[env.reset().removeprefix("Question: ")]
        for title in dict.fromkeys(title for title, _ in record["supporting_facts"]):
            titles += 1
            opened += not env.step(f"search[{title}]")[0].startswith("Could not find")
            index = next(i for t, i in record["supporting_facts"] if t == title)
            sentences = dict(map(tuple, record["context"]))[title]
            if index < len(sentences) and sentences[index].split():
                found += sentences[index].strip() in env.step(f"lookup[{sentences[index].strip()}]")[0]
        env.step(f"finish[{record['answer']}]")
        score += env.won
    print(f"{len(tasks)} questions: exact match {score / len(tasks):.1%}; {opened} of {titles} gold articles opened, "
          f"{found} supporting sentences looked up")


def check_gsm8k(data, split):
    """Answer with the key, in several spellings."""
    tasks = gsm8k.tasks(split, data)
    spellings = ("finish[{}]", "The answer is {}.", "#### {}", "${}", "{}.0" , "{} apples")
    for spelling in spellings:
        right = 0
        for task in tasks:
            env = task.make()
            env.reset()
            right += env.step(spelling.format(f"{int(env.key):,}" if env.key == int(env.key) else float(env.key)))[1] == 1
        print(f"{len(tasks)} questions, {spelling.format('N')!r}: {right / len(tasks):.2%}")


def main():
    p = argparse.ArgumentParser(description="Check the tools on official files.")
    p.add_argument("--hotpotqa", help="folder or file of HotpotQA")
    p.add_argument("--gsm8k", help="folder or file of GSM8K")
    p.add_argument("--split", required=True, help="dev or train; test or train")
    args = p.parse_args()
    if args.hotpotqa:
        check_hotpotqa(args.hotpotqa, args.split)
    if args.gsm8k:
        check_gsm8k(args.gsm8k, args.split)


if __name__ == "__main__":
    errors.run(main)
