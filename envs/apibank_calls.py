"""API-Bank's calls, [Name(key='value', key2=2)]: a parser that only ever raises its own error, and a printer."""
import math
import re


class NoCall(Exception):
    """The text is no call; the message says why and where."""


TOKEN = re.compile(r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
                        |(?P<number>-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.]))
                        |(?P<word>[A-Za-z_]\w*)|(?P<mark>[\[\](){},:=]))""", re.VERBOSE | re.DOTALL)
WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
DEEPEST = 50                                      # nested lists and objects
LONGEST_NUMBER = 32                               # characters of a number


def parse_call(text):
    """(name, {argument: value}) of the first call [Name(key=value, ...)] in a text; the brackets around it may be missing.

    Values are strings in either quotes with backslash escapes, numbers, True/False/None as Python or JSON writes them, lists, and
    objects. Raises NoCall for anything else.
    """
    start = re.search(r"\[\s*([A-Za-z_]\w*)\s*\(", text) or re.search(r"\b([A-Za-z_]\w*)\s*\(", text)
    if start is None:
        raise NoCall("there is no Name( in it")
    tokens = Tokens(text, start.start(1))
    name = tokens.take("word")
    tokens.take_mark("(")
    arguments = {}
    while not tokens.skip_mark(")"):
        key = tokens.take("word")
        tokens.take_mark("=")
        if key in arguments:
            raise NoCall(f"argument {key} is given twice")
        arguments[key] = tokens.value()
        if not tokens.skip_mark(","):
            tokens.take_mark(")")
            break
    return name, arguments


class Tokens:
    """The tokens of a text from a place on, taken one by one."""

    def __init__(self, text, at):
        self.text, self.at = text, at

    def peek(self):
        """(kind, text, where it ends) of the next token."""
        found = TOKEN.match(self.text, self.at)
        if found is None:
            rest = self.text[self.at:self.at + 20].strip()
            raise NoCall(f"at {self.at}: {rest!r} is no part of a call" if rest else "it ends too early")
        return found.lastgroup, found[found.lastgroup], found.end()

    def take(self, kind):
        """The next token, which must be of this kind."""
        found, text, end = self.peek()
        if found != kind:
            raise NoCall(f"at {self.at}: {text!r} where a {kind} was expected")
        self.at = end
        return text

    def take_mark(self, mark):
        """The next token, which must be this mark."""
        if not self.skip_mark(mark):
            raise NoCall(f"at {self.at}: {self.peek()[1]!r} where {mark!r} was expected")

    def skip_mark(self, mark):
        """Take the next token if it is this mark. -> was it?"""
        kind, text, end = self.peek()
        if (kind, text) == ("mark", mark):
            self.at = end
            return True
        return False

    def value(self, depth=0):
        """The value that begins here."""
        kind, text, end = self.peek()
        if depth > DEEPEST:
            raise NoCall("it is nested too deeply")
        if kind == "string":
            self.at = end
            return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", lambda m: chr(int(m[1], 16)) if m[1] else ESCAPES.get(m[2], m[2]),
                          text[1:-1], flags=re.DOTALL)
        if kind == "number":
            self.at = end
            if len(text) > LONGEST_NUMBER or not math.isfinite(float(text)):
                raise NoCall(f"{text[:LONGEST_NUMBER]}... is no number that anybody needs")
            return int(text) if text.lstrip("-").isdigit() else float(text)
        if kind == "word" and text in WORDS:
            self.at = end
            return WORDS[text]
        if kind == "mark" and text == "[":
            self.at = end
            return self.items("]", lambda: self.value(depth + 1))
        if kind == "mark" and text == "{":
            self.at = end
            return dict(self.items("}", lambda: self.pair(depth + 1)))
        raise NoCall(f"at {self.at}: {text!r} is no value; texts need quotes")

    def pair(self, depth):
        """key: value in an object."""
        key = self.value(depth)
        if isinstance(key, (list, dict)):
            raise NoCall("a key of an object must be a text or a number")
        self.take_mark(":")
        return key, self.value(depth)

    def items(self, closing, read):
        """Items read by `read`, with commas between them and perhaps after the last, up to the closing mark."""
        found = []
        while not self.skip_mark(closing):
            found.append(read())
            if not self.skip_mark(","):
                self.take_mark(closing)
                break
        return found


def print_call(name, arguments):
    """The call as text; `parse_call` reads it back."""
    return f"[{name}({', '.join(f'{key}={print_value(value)}' for key, value in arguments.items())})]"


def print_value(value):
    """A value as `parse_call` reads it."""
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        for letter, mark in ESCAPES.items():
            text = text.replace(mark, f"\\{letter}")
        return f"'{text}'"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(print_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{print_value(k)}: {print_value(v)}" for k, v in value.items()) + "}"
    return repr(value)
