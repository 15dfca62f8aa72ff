"""Functions as the weights of an agent: what they look like, how they are checked, changed and called (AgentOptimizer §3).

A function is {"name", "description", "arguments", "packages", "code"}: `arguments` maps each parameter to its JSON schema, `code`
is Python that defines `name`. A file of functions, functions.json, is a JSON list of them. Three actions change the list, each a
function call of the proposer (TOOLS); a fourth, TERMINATE, ends a step. What is wrong with an action is said in words, and
nothing is changed.

A call runs in the sandbox, each function alone with its own code: two that define helpers of one name do not disturb each other.
Packages are never installed; a function that imports what is not there is refused.
"""
import ast
import builtins
import functools
import importlib.util
import json
import keyword
import os
import threading

from envs.sandbox import Sandbox
from errors import BadInput

FIELDS = ("name", "description", "arguments", "packages", "code")
SANDBOX, LOCK = Sandbox(), threading.Lock()       # its process starts with the first call, and ends with ours
ACTIONS = {"add_function": "Add a new function that helps with tasks of this kind.",
           "revise_function": "Replace a function that is there; give all of it anew.",
           "remove_function": "Remove a function that does not help.",
           "TERMINATE": "End this step: nothing more is to be changed."}


def tools():
    """The actions as function-calling schemas."""
    text = {"name": "The function's name, the same as in its code.", "description": "What it computes, in a sentence.",
            "arguments": 'Its parameters: a JSON object of name -> schema, as a string, e.g. {"n": {"type": "integer"}}.',
            "packages": "Packages that the code imports, separated by commas; none are installed.",
            "code": "Python that defines the function. It must return its result; what it prints is not seen."}
    fields = {action: {"remove_function": FIELDS[:1], "TERMINATE": ()}.get(action, FIELDS) for action in ACTIONS}
    return [{"type": "function", "function": {"name": action, "description": about, "parameters": {
        "type": "object", "properties": {field: {"type": "string", "description": text[field]} for field in fields[action]},
        "required": list(fields[action])}}} for action, about in ACTIONS.items()]


# ---------------------------------------------------------------- what is a valid function

def cleaned(given):
    """A function from the fields of an action. Raises ValueError with what is wrong with it."""
    if missing := [field for field in FIELDS if field not in given and field != "packages"]:
        raise ValueError(f"{missing[0]} is missing")
    function = {field: given.get(field, "") for field in FIELDS}
    name, arguments = function["name"], function["arguments"]
    for field in ("name", "description", "code"):
        if not isinstance(function[field], str) or not function[field].strip():
            raise ValueError(f"{field} must be a text that is not empty")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is no name of a function")
    if name in vars(builtins):
        raise ValueError(f"{name} is a builtin of Python; choose another name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"arguments is no JSON ({error})") from None
    if isinstance(arguments, dict) and arguments.get("type") == "object" and isinstance(arguments.get("properties"), dict):
        arguments = arguments["properties"]                 # the whole schema was given
    if not isinstance(arguments, dict):
        raise ValueError('arguments must be a JSON object of name -> schema, e.g. {"n": {"type": "integer"}}')
    function["arguments"] = arguments
    packages = function["packages"]
    function["packages"] = ", ".join(map(str, packages)) if isinstance(packages, list) else str(packages)
    check_code(function)
    check_schema(function)
    return function


def check_code(function):
    """Does the code compile, define the function with these parameters, and import only what is there? Nothing of it is run."""
    try:
        tree = ast.parse(function["code"])
        compile(tree, "<code>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"code is no Python ({type(error).__name__}: {error})") from None
    name = function["name"]
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not defined:
        raise ValueError(f"code does not define a function {name} at top level")
    taken, wanted = parameters(defined[-1]), set(function["arguments"])
    if taken is not None and set(taken) != wanted:
        raise ValueError(f"code defines {name}({', '.join(taken)}), but arguments has {', '.join(sorted(wanted)) or 'nothing'}")
    for node in ast.walk(tree):
        imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for module in (path.split(".")[0] for path in imported):
            if importlib.util.find_spec(module) is None:
                raise ValueError(f"code imports {module}, which is not installed")


def parameters(definition):
    """Names of a function's parameters -> has it a default? None if it takes any (**rest)."""
    given = definition.args
    if given.kwarg or given.vararg or given.posonlyargs:
        return None
    late = len(given.args) - len(given.defaults)
    found = {a.arg: i >= late for i, a in enumerate(given.args)}
    return found | {a.arg: default is not None for a, default in zip(given.kwonlyargs, given.kw_defaults)}


def schema_of(function):
    """The whole JSON schema of the arguments of a call: those without a default are required, others are not known."""
    definition = [node for node in ast.parse(function["code"]).body
                  if isinstance(node, ast.FunctionDef) and node.name == function["name"]][-1]
    optional = [name for name, default in (parameters(definition) or {}).items() if default]
    return {"type": "object", "properties": function["arguments"], "additionalProperties": False,
            "required": [name for name in function["arguments"] if name not in optional]}


def check_schema(function):
    """Are the arguments' schemas JSON schemas?"""
    import jsonschema
    try:
        jsonschema.Draft202012Validator.check_schema(schema_of(function))
    except jsonschema.SchemaError as error:
        raise ValueError(f"arguments is no JSON schema ({error.message[:120]})") from None


# ---------------------------------------------------------------- the actions

def act(functions, action):
    """The list after an action {"name": ..., "arguments": {...}}; the one given is not changed. Raises ValueError with what is
    wrong."""
    if not isinstance(action, dict) or action.get("name") not in ACTIONS:
        raise ValueError(f"no action of that name; there are {', '.join(ACTIONS)}")
    given, verb = action.get("arguments"), action["name"]
    if verb == "TERMINATE":
        return functions
    if not isinstance(given, dict):
        raise ValueError(f"{verb}: its arguments must be a JSON object")
    name, there = given.get("name"), [f["name"] for f in functions]
    if verb == "add_function":
        if name in there:
            raise ValueError(f"add_function: {name} is there already; revise it")
        return [*functions, said_by(verb, given)]
    if name not in there:
        raise ValueError(f"{verb}: there is no function {name!r}; there are {', '.join(there) or 'none'}")
    if verb == "remove_function":
        return [f for f in functions if f["name"] != name]
    new = said_by(verb, given)
    return [new if f["name"] == name else f for f in functions]


def said_by(verb, given):
    """`cleaned`, with the action in front of what is wrong."""
    try:
        return cleaned(given)
    except ValueError as error:
        raise ValueError(f"{verb} {given.get('name')}: {error}") from None


# ---------------------------------------------------------------- using them

def signatures(functions):
    """What an agent sees of the functions: a line each."""
    def kind(schema):
        return schema.get("type", "any") if isinstance(schema, dict) else "any"
    return "\n".join(f"{f['name']}({', '.join(f'{name}: {kind(schema)}' for name, schema in f['arguments'].items())}): "
                     f"{' '.join(f['description'].split())}" for f in functions)


def call(functions, name, text, sandbox=SANDBOX):
    """What calling a function with arguments `text` (JSON) gives: "Result: ..." or "Error: ..."."""
    import jsonschema
    function = next((f for f in functions if f["name"] == name), None)
    if function is None:
        return f"Error: there is no function {name}; there are {', '.join(f['name'] for f in functions) or 'none'}."
    try:
        arguments = json.loads(text or "{}")
        jsonschema.validate(arguments, schema_of(function), cls=jsonschema.Draft202012Validator)
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments are no JSON ({error})."
    except jsonschema.ValidationError as error:
        return f"Error: {error.message[:200]}."
    value, error = run(sandbox, function["code"], f"{name}(**{arguments!r})")
    return f"Error: {error}" if error else f"Result: {value}"


@functools.lru_cache(20_000)
def run(sandbox, code, expression):
    """The sandbox's answer. The same calls come again in every epoch."""
    with LOCK:
        return sandbox.value(code, expression)


# ---------------------------------------------------------------- files

def read(file):
    """The functions of a file. Raises BadInput for what is none."""
    try:
        with open(file, encoding="utf-8") as opened:
            found = [cleaned(f) for f in json.load(opened)]
        if len({f["name"] for f in found}) < len(found):
            raise ValueError("two have the same name")
        return found
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"--functions {file}: no list of functions ({type(error).__name__}: {error}); give a functions.json of "
                       "optimize.py") from None


def write(file, content):
    """Write functions, or what else is JSON, under a temporary name first."""
    with open(f"{file}.tmp", "w", encoding="utf-8") as opened:
        json.dump(content, opened, indent=1, ensure_ascii=False)
    os.replace(f"{file}.tmp", file)
