"""Official coding problems: do the files load, and do the reference solutions pass all their tests in our sandbox?

    python tests/check_coding.py FILE...                   files of HumanEval, MBPP (sanitized) or CoopHumanEval
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import errors
from envs import coding
from envs.sandbox import Sandbox


def main():
    p = argparse.ArgumentParser(description="Check official coding problems.")
    p.add_argument("file", nargs="+", help="files of HumanEval, MBPP (sanitized) or CoopHumanEval")
    args = p.parse_args()
    with Sandbox(seconds=10) as sandbox:
        print(f"the sandbox has {', '.join(sandbox.layers) or 'limits only'}")
        for file in args.file:
            problems, whole = coding.read(file), 0
            solved = [p for p in problems if p.solution]
            for p in solved:
                outcome = sandbox.run(p.solution, p.tests, keep=[p.entry_point])
                whole += all(outcome.passed)
                for test, error in zip(p.tests, outcome.errors):
                    if error:
                        print(f"{p.id}: {error}: {' '.join(test.split())[:120]}")
            tests = sum(len(p.tests) for p in problems)
            print(f"{file}: {len(problems)} problems, {tests} tests; {whole} of {len(solved)} reference solutions pass")


if __name__ == "__main__":
    errors.run(main)
