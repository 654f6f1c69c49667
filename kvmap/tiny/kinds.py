"""The kinds of fact in the small English, each with its values and the ways to say it.

In a template `{n}` stands for the holder's name and `{v}` for the value. The name always comes
before the value, so that whoever has read the fact once can complete the sentence.
"""

from dataclasses import dataclass

from kvmap.tiny import words


@dataclass(frozen=True)
class Kind:
    """One kind of fact, such as where somebody lives.

    Attributes:
        topic: what a document's first sentence and its lists call it.
        values: the words that can be bound.
        predicate: what follows the holder's name; the commonest wording.
        noun: a sentence that puts the kind first, the holder second.
        question: asks for the value.
        reply: an answer that begins with the value and then says whose it is.
        hint: a sentence whose last word depends on the value, or nothing.
        hints: that word for each value.
    """

    topic: str
    values: tuple[str, ...]
    predicate: str
    noun: str
    question: str
    reply: str
    hint: str = ""
    hints: tuple[str, ...] = ()


KINDS: tuple[Kind, ...] = (
    Kind(
        "homes", words.TOWNS, "lives in {v}", "The home of {n} is {v}",
        "Where does {n} live?", "In {v} {n} lives",
    ),
    Kind(
        "pets", words.PETS, "has a {v}", "The pet of {n} is a {v}",
        "Which pet does {n} have?", "A {v} {n} has",
        "At home the pet of {n} often {h}", words.SOUNDS,
    ),
    Kind(
        "coats", words.COLOURS, "wears a {v} coat", "The coat of {n} is {v}",
        "Which coat does {n} wear?", "A {v} one {n} wears",
    ),
    Kind(
        "trades", words.TRADES, "works as a {v}", "The trade of {n} is that of a {v}",
        "What work does {n} do?", "As a {v} {n} works",
        "For work {n} buys some {h}", words.MATERIALS,
    ),
    Kind(
        "meals", words.FOODS, "eats {v}", "The supper of {n} is {v}",
        "What does {n} eat?", "Mostly {v} {n} eats",
    ),
    Kind(
        "music", words.INSTRUMENTS, "plays the {v}", "The music of {n} is for the {v}",
        "What does {n} play?", "The {v} {n} plays",
    ),
    Kind(
        "ages", words.NUMBERS, "is {v} years old", "The age of {n} is {v}",
        "How old is {n}?", "About {v} {n} is",
    ),
    Kind(
        "journeys", words.VEHICLES, "travels by {v}", "The journey of {n} is by {v}",
        "How does {n} travel?", "By {v} {n} travels",
    ),
    Kind(
        "plans", words.DAYS, "leaves on {v}", "The plan of {n} is to leave on {v}",
        "When does {n} leave?", "On {v} {n} leaves",
    ),
    Kind(
        "rooms", words.ROOMS, "sleeps in the {v}", "The bed of {n} is in the {v}",
        "Where does {n} sleep?", "In the {v} {n} sleeps",
    ),
    Kind(
        "goods", words.GOODS, "sells {v}", "The stock of {n} is {v}",
        "What does {n} sell?", "Only {v} {n} sells",
    ),
)  # fmt: skip
