"""WebShop: pages and buttons, the reward's branches, the official files, the built-in shop."""
import json
import re

import pytest
from conftest import run_explore

import speech
import buffer
import envs
from envs import webshop, words
from errors import BadInput


def product(asin="B01", title="Soft Cotton Shirt", bullets=("washable", "made well"), attributes=("cotton",), price=20.0,
            query="shirt",
            categories=("Clothing", "Shirts"), **options):
    return webshop.Product(asin, title, f"A description of {asin}.", tuple(bullets), tuple(attributes), options, price,
                           f"${price}", query,
                           categories)


def goal(of, attributes=("cotton", "washable"), options=("blue",), upper=30.0):
    return webshop.Goal("i need a shirt", of, attributes, options, upper, webshop.words)


# ------------------------------------------------------------------------------------------------------------------ reward

SHIRT = product(color=["blue", "red"])


@pytest.mark.parametrize("bought, chosen, wanted", [
    (SHIRT, ["blue"], 1), (SHIRT, [], 3 / 4), (SHIRT, ["red"], 3 / 4),                                     # options
    (SHIRT, ["navy blue stripes"], 1), (SHIRT, ["aqua blue"], 3 / 4),              # the first colour of the *list* in it: aqua
    (product(price=30.0), ["blue"], 1), (product(price=30.01), ["blue"], 3 / 4),                           # price
    (product(bullets=(), attributes=()), ["blue"], 3 / 4),  # cotton is in the title
    (product(title="Soft Shirt", bullets=("of cotton",), attributes=()), ["blue"], 3 / 4),  # in a bullet; not washable
    (product(title="Soft Shirt", bullets=(), attributes=("pure cotton", "machine washable")), ["blue"], 1),  # words of a list
    (product(title="Soft Shirt", bullets=(), attributes=("cottony",)), ["blue"], 3 / 4)])     # 92: near enough, but not washable
def test_the_parts_of_the_reward(bought, chosen, wanted):
    assert webshop.reward(bought, chosen, goal(SHIRT)) == pytest.approx(wanted)


WANTED = product(title="Soft Cotton Shirt Summer Garden Party Long Sleeve Button Down Collar")         # 11 words


@pytest.mark.parametrize("title, query, categories, wanted", [
    ("Soft Cotton Shirt", "shirt", (), 1), ("Soft Cotton Shirt", "other", (), 1),                  # 3/11 > 0.2
    ("Soft Cotton Rug", "other", (), .5), ("Soft Cotton Rug", "shirt", (), 1),  # 2/11: the same query saves it,
    ("Soft Cotton Rug", "other", ("Shirts", "Clothing", "Men"), 1),  # or two categories; one does not
    ("Soft Cotton Rug", "other", ("Shirts",), .5),
    ("Soft Rug", "other", (), .1), ("Soft Rug", "shirt", ("Clothing", "Shirts"), .1),              # 1/11 < 0.1, whatever else
    ("Garden Chair Party", "other", (), .5), ("Wool Rug", "shirt", ("Clothing", "Shirts"), 0)])    # nothing in common
def test_the_branches_of_r_type(title, query, categories, wanted):
    bought = product(title=title, query=query, categories=categories)
    assert webshop.type_reward(bought, goal(WANTED)) == wanted


def test_a_goal_without_nouns_scores_a_fifth():
    """0.2 is not more than 0.2: the query or the categories must decide."""
    bare = goal(product(title="Of the to"))
    assert webshop.type_reward(product(query="shirt"), bare) == 1
    assert webshop.type_reward(product(query="x", categories=()), bare) == .5


@pytest.mark.parametrize("a, b, wanted", [
    ("Cotton", "cotton", 100), ("pure cotton", "cotton", 100), ("cotton", "wool", 40), ("", "cotton", 0), ("a-b", "a b", 100),
    ("éclair", "clair", 100)])
def test_token_set_ratio(a, b, wanted):
    assert webshop.token_set_ratio(a, b) == wanted


@pytest.mark.parametrize("text, wanted", [("dark blue", "blue"), ("light dark", "dark"), ("xl", "xl"), ("blackberry", "black")])
def test_colours(text, wanted):
    assert webshop.normalise_colour(text) == wanted


# ------------------------------------------------------------------------------------------------------------------- pages

SHELF = [product(f"B{i:02}", f"Cotton Shirt {'Blue' if i % 2 else 'Red'} {i}", color=["blue", "red"], size=["s | m", "l"])
         for i in range(1, 26)]


def shop(max_steps=None):
    game = webshop.Game(goal(SHELF[0]), webshop.Shop(SHELF + [product("B99", "Wool Rug")]), max_steps)
    game.reset()
    return game


def buttons(game):
    return [action.removeprefix("click[")[:-1] for action in game.admissible]


def test_the_search_page():
    game = shop()
    assert game.observation() == "WebShop [SEP] Instruction: [SEP] i need a shirt [SEP] Search"
    assert game.admissible == ["search[i need a shirt]"]
    assert game.step("click[search]") == game.step("click[buy now]") == game.step("jump") == (game.observation(), 0, False)
    assert game.page == "search" and not game.parses("jump") and game.parses("click[x]")
    assert game.possible("search[anything]") and not game.possible("click[x]") and not game.possible("jump")


def test_results_ten_a_page():
    game = shop()
    text, reward, done = game.step("search[Cotton Shirt]")
    start = "Instruction: [SEP] i need a shirt [SEP] Back to Search [SEP] Page 1 (Total results: 25) [SEP] Next > [SEP] B"
    assert text.startswith(start) and (reward, done) == (0, False)
    assert len(re.findall(r"\[SEP\] B\d\d \[SEP\] Cotton Shirt \w+ \d+ \[SEP\] \$20.0", text)) == 10
    assert buttons(game)[:2] == ["back to search", "next >"] and len(buttons(game)) == 12
    game.step("click[Next >]")
    text = game.step("click[next >]")[0]
    assert "Page 3 (Total results: 25) [SEP] < Prev [SEP] Next > [SEP]" in text and len(buttons(game)) == 8
    assert "Page 4" in game.step("click[next >]")[0] and buttons(game) == ["back to search", "< prev",
                                                                           "next >"]       # empty, as there
    assert "Page 3" in game.step("click[< prev]")[0]
    assert game.step("click[back to search]")[0].startswith("WebShop")


def at_item(game, asin="b07"):
    game.step("search[shirt blue 7]")
    return game.step(f"click[{asin}]")[0]


def test_an_item_and_its_pages():
    game = shop()
    text = at_item(game)
    assert text == ("Instruction: [SEP] i need a shirt [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] blue [SEP] red [SEP] "
                    "size [SEP] s | m [SEP] l [SEP] Cotton Shirt Blue 7 [SEP] Price: $20.0 [SEP] Rating: N.A. [SEP] "
                    "Description [SEP] Features [SEP] Reviews [SEP] Buy Now")
    assert buttons(game) == ["back to search", "< prev", "description", "features", "reviews", "buy now", "blue", "red", "s | m",
                             "l"]
    start = "Instruction: [SEP] i need a shirt [SEP] Back to Search [SEP] < Prev"
    assert game.step("click[Description]")[0] == f"{start} [SEP] A description of B07." \
        and buttons(game) == ["back to search", "< prev"]
    assert game.step("click[buy now]")[0] == game.observation() and game.page == "description"
    assert game.step("click[< prev]")[0] == text
    assert game.step("click[features]")[0] == f"{start} [SEP] washable [SEP] made well"
    game.step("click[< prev]")
    assert game.step("click[reviews]")[0] == start
    game.step("click[< prev]")
    assert "Page 1" in game.step("click[< prev]")[0]


def test_options_are_kept_on_sub_pages_and_forgotten_on_the_way_back():
    game = shop()
    at_item(game)
    game.step("click[red]")
    assert game.step("click[S | M]")[0] == game.observation() and game.chosen == {"color": "red", "size": "s | m"}
    game.step("click[blue]")
    game.step("click[features]")
    game.step("click[< prev]")
    assert game.chosen == {"color": "blue", "size": "s | m"}
    game.step("click[< prev]")
    assert game.chosen == {} and game.product is None


def test_buying_ends_the_trip():
    game = shop()
    at_item(game, "b01")
    game.step("click[blue]")
    assert game.possible("click[Buy Now]")
    text, reward, done = game.step("click[Buy Now].")                                     # what follows is ignored, as there
    assert text == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0" and (reward, done) == (1, True)
    assert game.won and game.metrics == {"score": 1}
    game.reset()
    at_item(game)
    _, reward, done = game.step("click[buy now]")
    assert done and reward == game.metrics["score"] == .75 and not game.won                # nothing chosen: no success


def test_searching_works_from_everywhere_and_the_limit_ends():
    game = shop(4)
    at_item(game)
    text, _, done = game.step("search[wool]")
    assert "B99" in text and not done and game.step("search[nothing like it xyz]") == (game.observation(), 0, True)
    assert "Total results: 0" in game.observation() and game.truncated and not game.won
    game.reset()
    at_item(game), game.step("click[blue]")
    assert game.step("click[buy now]")[2] and not game.truncated                          # in the last step


# ---------------------------------------------------------------------------------------------------------- official files

ITEM = {"asin": "B0A", "name": "Soft Cotton Shirt", "full_description": "Nice.", "small_description": ["one", "two"],
        "pricing": "$12.50",
        "customization_options": {"Color": [{"value": " Blue/White "}, {"value": "Red"}], "Size": None}, "query": " Shirts ",
        "product_category": "Clothing › Men › Shirts", "category": "fashion"}
INS = {"B0A": {"attributes": ["cotton"], "instruction": "Find me shirts", "instruction_attributes": ["cotton"]}}
HUMAN = {"B0A": [{"instruction": "i want a blue shirt.", "instruction_attributes": ["cotton"],
                  "instruction_options": ["blue | white"]},
                 {"instruction": "any", "instruction_attributes": [], "instruction_options": []}]}


def write(folder, items=(ITEM,), ins=INS, human=None):
    (folder / "items_shuffle_1000.json").write_text(json.dumps(list(items)))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(ins))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human))
    return folder


def test_official_products(tmp_path):
    more = [{**ITEM, "asin": "B0B", "pricing": "$5.00$9.00", "small_description": "one", "customization_options": None},
            {**ITEM, "asin": "B0C", "pricing": ""}, {**ITEM, "asin": "nan"}, {**ITEM, "asin": "B0123456789"}, ITEM]
    sold, goals = webshop.official(str(write(tmp_path, [ITEM, *more])))
    assert list(sold.products) == ["B0A", "B0B", "B0C"]
    a, b, c = sold.products.values()
    assert a == webshop.Product("B0A", "Soft Cotton Shirt", "Nice.", ("one", "two"), ("cotton",),
                                {"color": ["blue | white", "red"]}, 12.5,
                                "$12.5", "shirts", ("Clothing", "Men", "Shirts"))
    assert 5 <= b.price <= 9 and b.tag == "$5.0 to $9.0" and b.bullets == ("one",) and b.attributes == ("DUMMY_ATTR",)
    assert c.price == 100 and c.tag == "$100.0"
    assert sorted(g.options for g in goals) == [("blue | white",), ("red",)]
    assert all(re.fullmatch(r"Find me shirts with color: (blue \| white|red), and price lower than [2345]0.00 dollars",
                            g.instruction)
               and g.price_upper in (30, 40, 50) for g in goals)


def test_the_upper_price_is_the_larger_of_two_of_the_next_four_tens():
    class Drawn:
        def sample(self, above, n):
            assert above == [20.0, 30.0, 40.0, 50.0] and n == 2
            return [40.0, 20.0]
    made = webshop.make_goal("i need it", product(price=12.5), ["soft"], [], Drawn(), webshop.words)
    assert made.price_upper == 40 and made.instruction == "i need it, and price lower than 40.00 dollars"
    dear = webshop.make_goal("i need it", product(price=985.0), ["soft"], [], Drawn(), webshop.words)  # one ten above it is left
    assert dear.price_upper == 1_000_000 and dear.instruction == "i need it"


def test_goals_by_people_and_the_splits(tmp_path):
    write(tmp_path, human=HUMAN)
    tasks = envs.tasks("webshop", data=tmp_path)
    assert [t.id for t in tasks] == ["test/0"] and tasks[0].kind == "1 option"
    env = tasks[0].make()
    assert env.reset().startswith("WebShop [SEP] Instruction: [SEP] i want a blue shirt, and price lower than ")
    for step in ("search[shirt]", "click[b0a]", "click[blue | white]"):
        env.step(step)
    assert env.step("click[buy now]")[1] == 1
    with pytest.raises(BadInput, match="only 1 goals, which are all in test"):
        envs.tasks("webshop", "train", data=tmp_path)


@pytest.mark.parametrize("content, message", [
    ("[{", "no JSON"), ('[{"asin": "B0A"}]', "product 1 is broken"),
    (json.dumps([ITEM, {**ITEM, "asin": "B0B", "pricing": "$x"}]), "product 2"),
    ('["x"]', "product 1 is broken"), (json.dumps([{**ITEM, "customization_options": {"Color": [{}]}}]), "product 1 is broken")])
def test_broken_product_files(tmp_path, content, message):
    write(tmp_path)
    (tmp_path / "items_shuffle_1000.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        envs.tasks("webshop", data=tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(BadInput, match="there is no items_shuffle.json or items_shuffle_1000.json"):
        envs.tasks("webshop", data=tmp_path)
    with pytest.raises(BadInput, match="--split dev: WebShop has train, eval, test"):
        envs.tasks("webshop", "dev")


# ----------------------------------------------------------------------------------------------------------- built-in shop

def trip(task, careless=False):
    env, steps, done = task.make(max_steps=15), [], False
    first = env.reset()
    while not done:
        _, action = webshop.expert(first, tuple(steps), careless)
        observation, reward, done = env.step(action)
        steps.append((action, observation))
    return env, steps


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_scripted_shopper(split):
    """It wins every trip; the careless one those where no size is wanted, and is paid something for the others."""
    for task in envs.tasks("webshop", split, limit=60, seed=2):
        env, steps = trip(task)
        assert env.won and len(steps) <= 15
        careless, _ = trip(task, careless=True)
        assert careless.won == (task.kind == "1 option") and 0 < careless.metrics["score"] <= 1


def test_every_goal_has_a_shop_of_its_own():
    """With a product of each of 10 things, and one more of the goal's; what has a number in one shop is something else in
    another. A seed says all."""
    def shops(split):
        return [t.make().shop.products for t in envs.tasks("webshop", split, limit=40, seed=1)]
    assert {len(products) for products in shops("train")} == {11}
    assert len({p["B0AE"].title for p in shops("train") if "B0AE" in p}) > 10
    before = shops("train")
    webshop.goal_and_shop.cache_clear()
    assert shops("train") == before and before[0] != shops("test")[0]
    things = [p.query for p in shops("eval")[0].values()]
    wanted = envs.tasks("webshop", "eval", limit=1, seed=1)[0].make().goal.product.query
    assert all(things.count(thing) == 1 + (thing == wanted) for thing in webshop.THINGS) and len(webshop.THINGS) == 10
    goals = [t.make().goal for t in envs.tasks("webshop", "train", limit=40, seed=1)]
    assert {t.kind for t in envs.tasks("webshop", "train", limit=40)} == {"1 option", "2 options"}
    assert all(goal.product.asin in shop and goal.product.price <= goal.price_upper for goal, shop in zip(goals, shops("train")))


def test_the_tiny_agents_words_are_commands():
    """Its tokenizer sets blanks before brackets. Whatever can be clicked survives it, and so does a whole trip."""
    tasks = envs.tasks("webshop", "train", limit=20, seed=3)
    trips = [trip(task) for task in tasks]
    texts = {text for env, steps in trips for action, observation in steps for text in (action, observation)}
    tokenizer = words.tokenizer_for({task.make().reset() for task in tasks} | texts, webshop.PHRASES, webshop.KINDS)
    def through(action):
        return speech.decode(tokenizer, tokenizer.encode(action), "act")
    for task, (_, steps) in zip(tasks, trips):
        env = task.make()
        env.reset()
        for action, _ in steps:
            assert all(env.possible(through(command)) for command in env.admissible)
            env.step(through(action))
        assert env.won
    assert through("click[buy now]") != "click[buy now]" and webshop.command_of("click[ Buy Now ]") == ("click", "buy now")


@pytest.mark.parametrize("place, action", [(2, "click[< prev]"), (0, "click[{asin}]")])
def test_the_shopper_opens_again_what_a_student_closed(place, action):
    """Only products that lack an option are left for good: not one that was closed, nor one that could not be clicked yet."""
    env = envs.tasks("webshop", "train", limit=1, seed=4)[0].make()
    first, steps = env.reset(), []
    for number in range(8):
        if not env.won:
            said = action.format(asin=env.goal.product.asin) if number == place else webshop.expert(first, tuple(steps))[1]
            steps.append((said, env.step(said)[0]))
    assert env.won


def test_exploring_the_shop(tmp_path):
    run_explore("--agent", "expert", "--env", "webshop", "--limit", 4, "--max-steps", 15, "--out", tmp_path / "x.jsonl")
    assert [(t.reward, t.metrics, t.success) for t in buffer.read(tmp_path / "x.jsonl")] == [(1, {"score": 1}, True)] * 4
