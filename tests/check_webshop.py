"""Check WebShop's reward against recorded episodes of the original, as far as the recordings' files allow.

    python tests/check_webshop.py --products FILE --episodes FILE --goals FILE

--products: a JSON list of {asin, title, price, options {name: [values]}}; --episodes: of {idx, instruction, actions, bought,
score}; --goals: of {key: {asin, query, name, goal_options}}, the goal of episode idx in place idx. Title, price and options
are known, the goal's attributes are not: a score agrees if some number of attributes, and of matches among them, gives it with
our r_type, price and options. (Without spaCy r_type is that of our own noun rule.) All titles are also indexed, and each
searched for.
"""
import argparse
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import errors
from envs import webshop


def make_product(record):
    """A Product of what is known; the price is the lower end of a range."""
    price = float(re.search(r"[\d.]+", record.get("price", "$100.0").replace(",", ""))[0])
    return webshop.Product(record["asin"], record["title"], "", (), (), record.get("options", {}), price, record.get("price", ""),
                           record.get("query", ""), ())


def agrees(episode, key, products, nouns):
    """Can the recorded score be ours? -> (does it, our known parts)"""
    bought, target = products[episode["bought"]], products.get(key["asin"])
    limit = re.search(r"price lower than (\d+\.\d+)", episode["instruction"])
    upper = float(limit[1]) if limit else 1_000_000
    wanted = webshop.Product(key["asin"], key["name"], "", (), (), {}, 0, "", key["query"], ())
    goal = webshop.Goal("", wanted, (), tuple(key["goal_options"]), upper, nouns)
    clicks = [a[6:-1].lower() for a in episode["actions"] if a.startswith("click[")]
    last = max(i for i, click in enumerate(clicks) if click == bought.asin.lower())
    values = {value: name for name, values in bought.options.items() for value in values}
    chosen = {values[click]: click for click in clicks[last:] if click in values}
    kind = 1.0 if bought.asin == (target and target.asin) else webshop.type_reward(bought, goal)
    known = webshop.option_matches(chosen.values(), goal) + (bought.price <= upper)
    kinds = {kind, 1.0} if kind == 0.5 else {kind}              # categories, which may save it, are not in the files
    counts = [(n, matched) for n in range(1, 9) for matched in range(n + 1)]
    possible = {kind * (matched + known) / (n + len(goal.options) + 1) for kind in kinds for n, matched in counts}
    return any(abs(score - episode["score"]) < 5e-3 for score in possible), (kind, known)


def main():
    p = argparse.ArgumentParser(description="Check WebShop's reward against recorded episodes.")
    for name in ("products", "episodes", "goals"):
        p.add_argument(f"--{name}", required=True, help="a JSON file")
    args = p.parse_args()
    products = {r["asin"]: make_product(r) for r in json.load(open(args.products, encoding="utf-8"))}
    goals, nouns = json.load(open(args.goals, encoding="utf-8")), webshop.noun_parser()
    same = count = 0
    for episode in json.load(open(args.episodes, encoding="utf-8")):
        if episode["score"] is None or episode["bought"] not in products or episode["idx"] >= len(goals):
            continue
        if f"click[{episode['bought']}]" not in episode["actions"]:
            continue
        fits, known = agrees(episode, goals[episode["idx"]]["key"], products, nouns)
        same, count = same + fits, count + 1
        if not fits:
            print(f"episode {episode['idx']}: recorded {episode['score']}, r_type and known points {known}")
    print(f"{same} of {count} recorded scores agree")
    shop = webshop.Shop(list(products.values()))
    first = sum(p.asin in {found.asin for found in shop.search(p.title)[:webshop.PAGE]} for p in products.values())
    print(f"{len(products)} titles indexed; {first} are on the first page when their title is searched for")


if __name__ == "__main__":
    errors.run(main)
