"""The text the mini checkpoint is trained on: generated here, from a seed, and from nothing else.

What the kinds of document are for:

- **equal odds** (`choose` with several words in one place): the next id is a coin toss, so a trained model ends with two
  or more logits that almost tie. They are the near ties that a port's rounding may flip.
- **fixed phrases**: the next id is certain, so the margin is many nats. A flip there is a fault.
- **counting, copying, sums**: the next id depends on the ones before it, so that a wrong position, a lost KV block or a
  window off by one changes the chain and does not only blur it.
- **chat**: the release's ChatML turns, so that the chat template is exercised on text the model knows.

German and English come in equal shares. Run as a script to read some of it: `python training/corpus.py 20`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"

_NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas"]
_EN_ANIMALS = ["dog", "cat", "horse", "bird", "fox", "bear"]
_EN_PLACES = ["garden", "forest", "kitchen", "market", "station", "river"]
_EN_ADJECTIVES = ["red", "blue", "green", "old", "small", "quiet"]
_EN_VERBS = ["sees", "finds", "follows", "paints", "remembers"]
_DE_ANIMALS = ["Hund", "Vogel", "Fuchs", "Esel", "Dachs", "Wolf"]
_DE_PLACES = ["Garten", "Wald", "Hof", "Park", "Bahnhof", "Keller"]
_DE_ADJECTIVES = ["roten", "blauen", "alten", "kleinen", "leisen", "neuen"]
_DE_VERBS = ["sieht", "findet", "malt", "sucht", "kennt"]
_CAPITALS_EN = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Austria", "Vienna"), ("Germany", "Berlin")]
_CAPITALS_DE = [
    ("Frankreich", "Paris"),
    ("Italien", "Rom"),
    ("Spanien", "Madrid"),
    ("Österreich", "Wien"),
    ("Deutschland", "Berlin"),
]
_DE_NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
_EN_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_LETTERS = "ABCDEFGHKLMNPRSTVWXZ"

_FIXED_EN = [
    "The early bird catches the worm, and the second mouse gets the cheese.",
    "All that glitters is not gold, as every miner in the valley learned in time.",
    "A journey of a thousand miles begins with a single step out of the door.",
]
_FIXED_DE = [
    "Morgenstund hat Gold im Mund, doch wer zu spät kommt, den bestraft das Leben.",
    "Wer anderen eine Grube gräbt, fällt selbst hinein, so steht es im alten Buch.",
    "Es ist noch kein Meister vom Himmel gefallen, sagte der Lehrer und lachte leise.",
]

_SYSTEM = "# Reasoning effort\n\nThinking is disabled for this conversation.\n"


def _story_en(rng: random.Random) -> str:
    name, other = rng.sample(_NAMES, 2)
    clause = f"{rng.choice(_EN_VERBS)} the {rng.choice(_EN_ADJECTIVES)} {rng.choice(_EN_ANIMALS)}"
    first = f"{name} {clause} in the {rng.choice(_EN_PLACES)}."
    second = rng.choice(
        [
            f"Then {other} comes home and tells {name} about the {rng.choice(_EN_PLACES)}.",
            f"In the evening {name} and {other} walk to the {rng.choice(_EN_PLACES)}.",
            f"{other} asks {name} for the {rng.choice(_EN_ADJECTIVES)} {rng.choice(_EN_ANIMALS)}.",
        ]
    )
    return f"{first} {second}"


def _story_de(rng: random.Random) -> str:
    name, other = rng.sample(_NAMES, 2)
    clause = f"{rng.choice(_DE_VERBS)} den {rng.choice(_DE_ADJECTIVES)} {rng.choice(_DE_ANIMALS)}"
    first = f"{name} {clause} im {rng.choice(_DE_PLACES)}."
    second = rng.choice(
        [
            f"Dann kommt {other} nach Hause und erzählt {name} vom {rng.choice(_DE_PLACES)}.",
            f"Am Abend gehen {name} und {other} in den {rng.choice(_DE_PLACES)}.",
            f"{other} fragt {name} nach dem {rng.choice(_DE_ADJECTIVES)} {rng.choice(_DE_ANIMALS)}.",
        ]
    )
    return f"{first} {second}"


def _coin_en(rng: random.Random) -> str:
    side = rng.choice(["heads", "tails"])
    colour = rng.choice(["red", "blue", "green", "white"])
    first, second, winner = (rng.choice(_NAMES) for _ in range(3))
    return f"{first} throws a coin: {side}. {second} draws a card: {colour}. The winner is {winner}."


def _coin_de(rng: random.Random) -> str:
    side = rng.choice(["Kopf", "Zahl"])
    colour = rng.choice(["rot", "blau", "grün", "gelb"])
    first, second, winner = (rng.choice(_NAMES) for _ in range(3))
    return f"{first} wirft eine Münze: {side}. {second} zieht eine Karte: {colour}. Es gewinnt {winner}."


def _capital_en(rng: random.Random) -> str:
    return " ".join(f"The capital of {country} is {city}." for country, city in rng.sample(_CAPITALS_EN, 3))


def _capital_de(rng: random.Random) -> str:
    return " ".join(f"Die Hauptstadt von {country} ist {city}." for country, city in rng.sample(_CAPITALS_DE, 3))


def _counting(words: list[str], prefix: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        start, step = rng.randrange(0, 4), rng.choice([1, 1, 2])
        return f"{prefix} " + ", ".join(words[start::step]) + "."

    return make


def _digits(rng: random.Random) -> str:
    start, step = rng.randrange(0, 60), rng.choice([1, 2, 3, 5])
    return "Reihe: " + " ".join(str(start + step * i) for i in range(rng.randrange(8, 16))) + "."


def _copying(verb: str, again: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        letters = " ".join(rng.choice(_LETTERS) for _ in range(rng.randrange(4, 13)))
        return f"{verb}: {letters}. {again}: {letters}."

    return make


def _sum(word: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        terms = [(rng.randrange(0, 10), rng.randrange(0, 10)) for _ in range(4)]
        return f"{word}: " + ", ".join(f"{a} + {b} = {a + b}" for a, b in terms) + "."

    return make


def _fixed(phrases: list[str]) -> Callable[[random.Random], str]:
    return lambda rng: " ".join(rng.sample(phrases, 2))


def _chat(rng: random.Random) -> str:
    if rng.random() < 0.5:
        country, city = rng.choice(_CAPITALS_EN)
        question, answer = f"What is the capital of {country}?", f"The capital of {country} is {city}."
    else:
        country, city = rng.choice(_CAPITALS_DE)
        question, answer = f"Was ist die Hauptstadt von {country}?", f"Die Hauptstadt von {country} ist {city}."
    return (
        f"{START_OF_TURN}system\n{_SYSTEM}{END_OF_TURN}\n"
        f"{START_OF_TURN}user\n{question}{END_OF_TURN}\n"
        f"{START_OF_TURN}assistant\n<think>\n\n</think>\n\n{answer}"
    )


_KINDS: list[tuple[int, Callable[[random.Random], str]]] = [
    (5, _story_en),
    (5, _story_de),
    (3, _coin_en),
    (3, _coin_de),
    (2, _capital_en),
    (2, _capital_de),
    (2, _counting(_EN_NUMBERS, "Counting:")),
    (2, _counting(_DE_NUMBERS, "Zählen:")),
    (2, _digits),
    (2, _copying("Copy", "Again")),
    (2, _copying("Merke", "Nochmal")),
    (1, _sum("Sums")),
    (1, _sum("Summen")),
    (1, _fixed(_FIXED_EN)),
    (1, _fixed(_FIXED_DE)),
    (2, _chat),
]


def documents(seed: int, count: int) -> Iterator[str]:
    """Yield `count` documents; the same seed gives the same text on every Python version and machine.

    Args:
        seed: the stream's seed. Training and evaluation use different ones.
        count: number of documents, each one to four sentences, without the end-of-turn token.
    """
    rng = random.Random(seed)
    weights = [weight for weight, _ in _KINDS]
    makers = [maker for _, maker in _KINDS]
    for _ in range(count):
        yield rng.choices(makers, weights)[0](rng)


if __name__ == "__main__":
    for text in documents(seed=1, count=int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(text)
