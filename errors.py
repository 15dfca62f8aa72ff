"""The one error a user is meant to see: a line that names the file or the argument, what is wrong, and the mend."""
import argparse
import sys


class BadInput(Exception):
    """Something outside the program is wrong (a file, an argument). Never raised for our own bugs."""


def count(text):
    """A positive whole number, as the `type` of an argument."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def run(main):
    """Call `main()`; print a BadInput as one line and exit with code 2. Every other error keeps its traceback."""
    try:
        main()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
