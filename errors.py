"""The one error a user is meant to see: a line that names the file or the argument, what is wrong, and the mend."""
import argparse
import json
import os
import sys


class BadInput(Exception):
    """Something outside the program is wrong (a file, an argument). Never raised for our own bugs."""


def count(text):
    """A positive whole number, as the `type` of an argument."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def share(text):
    """A number above 0, up to 1, as the `type` of an argument."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0, up to 1")
    return float(text)


def same_command(note, args, results):
    """Write the arguments of a run that may be stopped into the file `note`; if one of the files `results` holds something
    already, compare with those that are there first. Raises BadInput if any differs that changes the result."""
    free = ("overwrite", "threads", "slots", "micro_batch", "save_every", "show", "seconds", "summary", "recipe", "out")
    now = {name: value for name, value in vars(args).items() if name not in free}
    if not args.overwrite and any(os.path.exists(file) and os.path.getsize(file) for file in results):
        try:
            with open(note, encoding="utf-8") as file:
                before = dict(json.load(file))
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(f"{note}: cannot be read ({error}), so nobody knows what was begun there; give --overwrite to begin "
                           "anew") from None
        if changed := [name for name, value in now.items() if name not in before or before[name] != value]:
            option = {"value_weight": "lambda"}.get(changed[0], changed[0]).replace("_", "-")
            raise BadInput(f"{note}: what is there was begun with another --{option} ({before.get(changed[0])}); give the same, "
                           "or --overwrite to begin anew")
    with open(f"{note}.tmp", "w", encoding="utf-8") as file:
        json.dump(now, file)
    os.replace(f"{note}.tmp", note)


def run(main):
    """Call `main()`; print a BadInput as one line and exit with code 2. Every other error keeps its traceback."""
    try:
        main()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
