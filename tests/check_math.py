"""MATH's answers: is each equal to itself, to its boxed form and to other ways of writing it, and different from perturbed ones?

    python tests/check_math.py FILE_OR_DIR...              MATH as envs/mathqa.py reads it
"""
import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import errors
from envs import mathqa


def rewritten(answer):
    """Other ways of writing it."""
    return {answer, f"${answer}$", f" {answer} ", answer.replace("\\frac", "\\dfrac"), answer.replace("(", "\\left(").replace(")", "\\right)"),
            mathqa.last_boxed(f"So \\boxed{{{answer}}}."), mathqa.normalise(answer)}


def perturbed(answer):
    """Other answers: another number, another sign, another letter, one more."""
    number = re.search(r"\d+", answer)
    if number:
        yield answer[:number.start()] + str(int(number[0]) + 1) + answer[number.end():]
    yield answer[1:] if answer.startswith("-") else f"-{answer}"
    letter = re.search(r"(?<!\\)\b[a-zA-Z]\b", answer)
    if letter:
        yield answer[:letter.start()] + chr(ord(letter[0]) ^ 3 | 64) + answer[letter.end():]
    yield f"{answer}, 1"


def main():
    p = argparse.ArgumentParser(description="Check the comparison of MATH's answers.")
    p.add_argument("place", nargs="+", help="files or folders of MATH")
    for place in p.parse_args().place:
        tasks = [t for split in ("train", "test") for t in mathqa.tasks(split, place)]
        same = wrong = others = 0
        for t in tasks:
            answer = t.make().answer
            forms, different = rewritten(answer), list(perturbed(answer))
            same += all(mathqa.same_answer(form, answer) for form in forms)
            for other in different:
                others += 1
                if mathqa.same_answer(other, answer):
                    wrong += 1
                    print(f"{t.id}: {other!r} is taken for {answer!r}")
        print(f"{place}: {same} of {len(tasks)} answers equal all their forms; {others - wrong} of {others} perturbed ones differ")


if __name__ == "__main__":
    errors.run(main)
