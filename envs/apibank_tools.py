"""The built-in world of API-Bank: tools over a small database, questions that take one to three calls, and who answers them.

Each question has a database of its own, made from its seed. Many tools want a token, which a name and a password buy; some
questions cannot be answered (a wrong password, a town that nobody knows, a day that is taken): then the tool's error is the
answer. An answer is right if it is the result, and the database has become what it should: no more, and no less.
"""
import copy
import inspect
import json
import random
import re
from dataclasses import dataclass
from functools import lru_cache

from envs import Task
from envs.apibank_calls import NoCall, parse_call, print_call
from errors import BadInput

PEOPLE = "ann ben cara dan eva finn".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
TOWNS = "oslo rome paris cairo lima delhi tokyo quito".split()
SKIES = "sun rain snow wind fog".split()
EVENTS = "dinner dentist concert lecture match party".split()
CHORES = "milk letters flowers keys tickets taxes".split()
SHARES = "acorn bluebird copper dune everest".split()
CAPITALS = {"norway": "oslo", "italy": "rome", "france": "paris", "egypt": "cairo", "peru": "lima", "india": "delhi"}
UNITS = {("hours", "minutes"): 60, ("days", "hours"): 24, ("weeks", "days"): 7, ("metres", "centimetres"): 100}


class ToolError(Exception):
    """What a tool says when it cannot do what it is asked."""


def database(rng):
    """The day; people with password, token, money, agenda and reminders; the weather; what shares cost."""
    numbers, people = rng.sample(range(10, 100), 2 * len(PEOPLE)), {}
    for name in PEOPLE:
        people[name] = {"password": numbers.pop(), "token": numbers.pop(), "money": rng.randrange(20, 100),
                        "agenda": {day: rng.choice(EVENTS) for day in rng.sample(DAYS, 3)}, "reminders": rng.sample(CHORES, 2)}
    weather = {town: {day: (rng.choice(SKIES), rng.randrange(40)) for day in DAYS} for town in TOWNS}
    return {"today": rng.choice(DAYS), "people": people, "weather": weather, "prices": {s: rng.randrange(2, 20) for s in SHARES}}


# ---------------------------------------------------------------- the tools: (database, arguments) -> result, or a ToolError

def get_token(db, username: str, password: int):
    if entry(db["people"], username, "no such user")["password"] != password:
        raise ToolError("wrong password")
    return db["people"][username]["token"]


def balance(db, token: int):
    return owner(db, token)["money"]


def transfer(db, token: int, to: str, amount: int):
    payer, payee = owner(db, token), entry(db["people"], to, "no such user")
    if not 0 < amount <= payer["money"]:
        raise ToolError("not enough money")
    payer["money"] -= amount
    payee["money"] += amount
    return "done"


def query_agenda(db, token: int, day: str):
    return entry(owner(db, token)["agenda"], day, "nothing on that day")


def add_agenda(db, token: int, day: str, event: str):
    agenda = owner(db, token)["agenda"]
    if day in agenda:
        raise ToolError("that day is taken")
    if day not in DAYS:
        raise ToolError("no such day")
    agenda[day] = event
    return "done"


def delete_agenda(db, token: int, day: str):
    agenda = owner(db, token)["agenda"]
    entry(agenda, day, "nothing on that day")
    del agenda[day]
    return "done"


def query_reminders(db, token: int):
    return list(owner(db, token)["reminders"])


def add_reminder(db, token: int, thing: str):
    reminders = owner(db, token)["reminders"]
    if thing in reminders:
        raise ToolError("it is there already")
    reminders.append(thing)
    return "done"


def delete_reminder(db, token: int, thing: str):
    reminders = owner(db, token)["reminders"]
    if thing not in reminders:
        raise ToolError("no such reminder")
    reminders.remove(thing)
    return "done"


def modify_password(db, token: int, new_password: int):
    owner(db, token)["password"] = new_password
    return "done"


def today(db):
    return db["today"]


def weather(db, town: str, day: str):
    return entry(entry(db["weather"], town, "no such town"), day, "no such day")[0]


def temperature(db, town: str, day: str):
    return entry(entry(db["weather"], town, "no such town"), day, "no such day")[1]


def capital(db, country: str):
    return entry(CAPITALS, country, "no such country")


def stock_price(db, company: str):
    return entry(db["prices"], company, "no such company")


def convert(db, amount: float, unit: str, to: str):
    return amount * entry(UNITS, (unit, to), "no such units")


def entry(table, key, complaint):
    """table[key]; where it has no such key, the complaint."""
    if key not in table:
        raise ToolError(complaint)
    return table[key]


def owner(db, token):
    """The person whose token it is."""
    return entry({person["token"]: person for person in db["people"].values()}, token, "no such token")


TOOLS = {"".join(map(str.capitalize, f.__name__.split("_"))): f for f in (
    get_token, balance, transfer, query_agenda, add_agenda, delete_agenda, query_reminders, add_reminder, delete_reminder,
    modify_password, today, weather, temperature, capital, stock_price, convert)}
PARAMETERS = {name: dict(list(inspect.signature(tool).parameters.items())[1:]) for name, tool in TOOLS.items()}
DESCRIPTIONS = "Tools: " + ", ".join(
    f"{name}({', '.join(f'{key}: {p.annotation.__name__}' for key, p in parameters.items())})"
    for name, parameters in PARAMETERS.items())


def call(db, name, arguments):
    """The result of a call. The case of names and texts, and blanks around texts, do not count. Raises ToolError."""
    known = {tool.lower(): tool for tool in TOOLS}
    name = entry(known, name.lower(), f"no such tool: {name}")
    wanted = PARAMETERS[name]
    if odd := [key for key in arguments if key not in wanted]:
        raise ToolError(f"{name} has no argument {odd[0]}")
    values = {}
    for key, parameter in wanted.items():
        value, kind = entry(arguments, key, f"{name} needs the argument {key}"), parameter.annotation
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ToolError(f"{key} must be a {'text' if kind is str else 'number'}")
        values[key] = value.strip().lower() if kind is str else value
    return TOOLS[name](db, **values)


# ---------------------------------------------------------------- questions: kind, words, and the calls that answer them

@dataclass(frozen=True)
class Question:
    """{field}: drawn anew for each question; <n>: the result of the nth call."""
    kind: str
    words: str
    calls: tuple


LOGIN = "i am {name} and my password is {password}. "
TOKEN = "GetToken(username='{name}', password={password})"
QUESTIONS = [
    Question("look up", "how is the weather in {town} on {day}?", ("Weather(town='{town}', day='{day}')",)),
    Question("look up", "how warm is it in {town} on {day}?", ("Temperature(town='{town}', day='{day}')",)),
    Question("look up", "what does {company} cost?", ("StockPrice(company='{company}')",)),
    Question("look up", "what is the capital of {country}?", ("Capital(country='{country}')",)),
    Question("look up", "how many {small} are {number} {unit}?", ("Convert(amount={number}, unit='{unit}', to='{small}')",)),
    Question("chain", "how is the weather in {town} today?", ("Today()", "Weather(town='{town}', day='<1>')")),
    Question("chain", "how warm is it in the capital of {country} today?",
             ("Today()", "Capital(country='{country}')", "Temperature(town='<2>', day='<1>')")),
    Question("own data", LOGIN + "how much money do i have?", (TOKEN, "Balance(token=<1>)")),
    Question("own data", LOGIN + "what do i do on {day}?", (TOKEN, "QueryAgenda(token=<1>, day='{day}')")),
    Question("own data", LOGIN + "what do i do today?", (TOKEN, "Today()", "QueryAgenda(token=<1>, day='<2>')")),
    Question("own data", LOGIN + "what must i remember?", (TOKEN, "QueryReminders(token=<1>)")),
    Question("change", LOGIN + "pay {other} {number}.", (TOKEN, "Transfer(token=<1>, to='{other}', amount={number})")),
    Question("change", LOGIN + "pay {other} {number}; what is left?",
             (TOKEN, "Transfer(token=<1>, to='{other}', amount={number})", "Balance(token=<1>)")),
    Question("change", LOGIN + "note {event} on {day}.", (TOKEN, "AddAgenda(token=<1>, day='{day}', event='{event}')")),
    Question("change", LOGIN + "cancel what i do on {day}.", (TOKEN, "DeleteAgenda(token=<1>, day='{day}')")),
    Question("change", LOGIN + "remind me of {chore}.", (TOKEN, "AddReminder(token=<1>, thing='{chore}')")),
    Question("change", LOGIN + "forget {chore}.", (TOKEN, "DeleteReminder(token=<1>, thing='{chore}')")),
    Question("change", LOGIN + "make {number} my password.", (TOKEN, "ModifyPassword(token=<1>, new_password={number})")),
]
KINDS_OF_QUESTION = {"look up": 0.3, "chain": 0.2, "own data": 0.25, "change": 0.25}
PATTERNS = [re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(q.words))) for q in QUESTIONS]


def draw(rng, db):
    """Values for all fields, for a question of one's own world; one in ten fits nothing: a wrong password, an unknown town."""
    name, other = rng.sample(PEOPLE, 2)
    unit, small = rng.choice(list(UNITS))
    fields = {"name": name, "other": other, "password": db["people"][name]["password"], "town": rng.choice(TOWNS),
              "day": rng.choice(DAYS), "company": rng.choice(SHARES), "country": rng.choice(list(CAPITALS)), "unit": unit,
              "small": small, "number": rng.randrange(2, 60), "event": rng.choice(EVENTS), "chore": rng.choice(CHORES)}
    if rng.random() < 0.1:
        fields.update(password=rng.randrange(10, 100), town="atlantis", country="utopia", company="zenith")
    return fields


def next_call(question, fields, results):
    """The call that follows these results, as text; None when all have been made."""
    if len(results) == len(question.calls):
        return None
    text = question.calls[len(results)].format(**fields)
    return "[" + re.sub(r"<(\d)>", lambda m: str(results[int(m[1]) - 1]), text) + "]"


def built_in_task(split, seed, index):
    """A question with a database of its own."""
    rng = random.Random(f"apibank {split} {seed} {index}")
    kind = rng.choices(list(KINDS_OF_QUESTION), list(KINDS_OF_QUESTION.values()))[0]
    question, chance = rng.choice([q for q in QUESTIONS if q.kind == kind]), rng.random()
    return Task(f"{split}/{seed}/{index}", kind, split, lambda max_steps=5: Tools(question, chance, max_steps))


@lru_cache(100)
def solve(question, chance):
    """(words, database before, after, answer) of a question."""
    rng = random.Random(chance)
    before = database(rng)
    fields, after, results = draw(rng, before), copy.deepcopy(before), []
    try:
        while text := next_call(question, fields, results):
            results.append(call(after, *parse_call(text)))
        answer = shown(results[-1])
    except ToolError as error:
        answer = str(error)
    return question.words.format(**fields), before, after, answer


def shown(result):
    """A result as the tool prints it."""
    return result if isinstance(result, str) else json.dumps(result)


def words_of(text):
    """The words of an answer, to compare: no marks, no case; 3.0 is 3."""
    return re.findall(r"[a-z]+|\d+(?:\.\d+)?", re.sub(r"(\d)\.0+\b", r"\1", text.lower()))


class Tools:
    """One question. An action is a call, or "Answer: ..." to end."""

    admissible, metrics = (), {}

    def __init__(self, question, chance, max_steps=None):
        self.question, self.chance, self.max_steps = question, chance, max_steps

    def reset(self):
        """The tools, and the question."""
        words, before, self.wanted, self.answer = solve(self.question, self.chance)
        self.db, self.steps, self.won, self.truncated = copy.deepcopy(before), 0, False, False
        return f"{DESCRIPTIONS}\nQuestion: {words}"

    def parses(self, action):
        """Is it a call or an answer?"""
        return answer_of(action) is not None or is_call(action)

    def step(self, action):
        """-> (observation, reward, done). Reward +1: the right answer, and the database as it should be; -1: a wrong one."""
        self.steps += 1
        if (answer := answer_of(action)) is not None:
            self.won = words_of(answer) == words_of(self.answer) and self.db == self.wanted
            return "The end.", 1.0 if self.won else -1.0, True
        self.truncated = self.steps == self.max_steps
        try:
            result = f"Result: {shown(call(self.db, *parse_call(action)))}"
        except (ToolError, NoCall) as error:
            result = f"Error: {error}"
        return result, 0.0, self.truncated


def is_call(action):
    """Can it be read as a call?"""
    try:
        parse_call(action)
        return True
    except NoCall:
        return False


def answer_of(action):
    """What an action answers; None if it is no answer. A tokenizer may have lost the colon."""
    found = re.match(r"answer\b\s*:?\s*(.*)", action.strip(), re.IGNORECASE | re.DOTALL)
    return found and found[1]


# ---------------------------------------------------------------- the scripted player

def expert(first, steps, careless=False):
    """The next (thought, action) of a player who has read the question and the (action, observation) pairs `steps`.

    It makes the question's calls one after the other, and answers with the last result, or with an error. careless: it takes the
    password for the token, and any day for a Monday.
    """
    question, fields = next(((q, found.groupdict()) for q, pattern in zip(QUESTIONS, PATTERNS)
                             if (found := pattern.fullmatch(first.rpartition("Question: ")[2]))), (None, None))
    if question is None:
        raise BadInput("--agent expert, --teacher expert: the scripted player knows built-in questions only; leave out --data")
    told = [observation for _, observation in steps]
    if told and told[-1].startswith("Error: "):
        return "That is an error.", f"Answer: {told[-1].removeprefix('Error: ')}"
    results = [text.removeprefix("Result: ") for text in told]
    if careless:                                            # what it does not ask for it puts in place of the results
        shortcuts = {TOKEN: fields.get("password"), "Today()": "monday"}
        results = [shortcuts[c] if c in shortcuts else results.pop(0) if results else None for c in question.calls]
        results = results[:results.index(None)] if None in results else results
    text = next_call(question, fields, results)
    if text is None:
        return "That is the answer.", f"Answer: {results[-1]}"
    return f"I need {parse_call(text)[0]}.", print_call(*parse_call(text))


PHRASES = [DESCRIPTIONS, "Question:", "The end.", "Result:", "Error:", "Answer:", "That is an error.", "That is the answer."]
PHRASES += [piece for q in QUESTIONS for piece in re.split(r"[{<]\w+[}>]", q.words) if len(piece.split()) > 1]
PHRASES += [piece for name, parameters in PARAMETERS.items() for piece in (
    f"I need {name}.", *re.split("X", print_call(name, {k: "X" for k in parameters}).replace("'X'", "X")))]
