"""API-Bank's own tools, run from a checkout of theirs, in a process of their own: a request a line, an answer a line.

    python envs/apibank_official.py CHECKOUT        CHECKOUT: the folder api-bank of github.com/AlibabaResearch/DAMO-ConvAI

    {"name": "QueryBalance", "arguments": {"token": "..."}, "result": recorded result}
    -> {"output", "exception", "right"}, {"refused": why} for a call that the tool does not take, or {"absent": what it lacks}
    {"describe": "QueryBalance"} -> {"description": its name, purpose, arguments and results; "" for a tool that is not there}

As in the official evaluation each call meets the databases as they were at first. A tool that reaches for the network, or for a
package that is not installed, is "absent". The process gets no environment variables, and a limit of memory; it may read and
write files, as the checkout's code, which the user trusts, may anywhere. Nothing of it is imported by parley.
"""
import ast
import importlib.abc
import importlib.machinery
import json
import os
import resource
import socket
import sys
import types

PACKAGES = ("googletrans", "nltk", "numpy", "rank_bm25", "requests", "sentence_transformers")


class Absent(BaseException):
    """Something is not there. No Exception: tools catch those, and would report it as their own result."""


class StandIn(types.ModuleType):
    """A package that is not installed: whatever is taken from it says so when it is used."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        package = self.__name__.partition(".")[0]

        def absent(*args, **options):
            raise Absent(f"the package {package}")
        return absent


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a StandIn for each of PACKAGES that nothing else has found."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in PACKAGES else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def no_network(*args, **options):
    raise Absent("the network")


def as_type(value, kind):
    """A value as the tools take it: the official parser knows nothing but texts; in the records lists are texts, too."""
    if kind in ("list", "list(str)") and isinstance(value, str):
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return value
    return value if kind in ("int", "float", "list", "list(str)") or value is None else str(value)


def answer(request, manager):
    """What the tool says to a request, and whether that is the recorded result, by the tool's own rule."""
    if "describe" in request:
        known = request["describe"] in manager.list_all_apis()
        return {"description": manager.get_api_description(request["describe"]) if known else ""}
    try:
        types_of = {key: about["type"] for key, about in manager.get_api_by_name(request["name"])["input_parameters"].items()}
        arguments = {key: as_type(value, types_of.get(key)) for key, value in request["arguments"].items()}
        result = manager.api_call(request["name"], **arguments)
    except Absent as what:
        return {"absent": str(what)}
    except Exception as error:                              # whatever a tool trips over is the caller's fault, as officially
        return {"refused": f"{type(error).__name__}: {error}"}
    try:
        right = bool(manager.init_tool(request["name"]).check_api_call_correctness(result, request["result"]))
    except Absent as what:
        return {"absent": str(what)}
    except Exception:                                       # a result that cannot be compared is another one, as officially
        right = False
    return {"output": result["output"], "exception": result["exception"], "right": right}


def main():
    checkout = sys.argv[1]
    replies, sys.stdout = sys.stdout, sys.stderr            # tools print
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    sys.meta_path.append(Finder())
    socket.socket.connect = socket.getaddrinfo = socket.create_connection = no_network
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    from tool_manager import ToolManager
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), ToolManager()), default=str), file=replies, flush=True)


if __name__ == "__main__":
    main()
