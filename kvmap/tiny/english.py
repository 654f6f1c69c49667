"""A small English whose documents state facts early and need them hundreds of tokens later.

A document binds values to names in its opening ("Anna lives in Oslo."), then keeps coming back to
them: questions with answers, restatements in other words, sentences whose wording depends on the
value, with remarks of no consequence between. Some facts are left alone for long, so that their
next mention can only be completed from the far end of the document.

Documents are random-access: `(seed, split, index)` seeds a generator of its own, so the splits
are disjoint by construction and any document is the same on every machine.
"""

import re
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvmap.tiny import words as lexicon
from kvmap.tiny.kinds import KINDS, Kind

T = TypeVar("T")

SPLITS = ("training", "calibration", "development", "test")
KINDS_PER_DOCUMENT = 6
LISTED, STATED = 0.06, 0.2  # how often facts come back as a list, or as a plain statement
RESERVED = 0.4  # share of the facts that stay unmentioned for long
LEAD, REMARK, HINT = 0.08, 0.04, 0.25  # how often a sentence is introduced, idle, or a hint


@dataclass(frozen=True)
class Lookup:
    """One question about a value that was bound once, earlier, and not mentioned since.

    Attributes:
        position: character offset in the text where the answer word starts.
        stated: character offset in the text where the value was bound.
        answer: the right word, exactly as in the text.
        choices: four words of one kind, the answer among them; the others are bound to other
            names in the same document.
    """

    position: int
    stated: int
    answer: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A text and the questions that it answers."""

    text: str
    lookups: tuple[Lookup, ...]


@dataclass
class _Fact:
    """A value bound to a name, and what has been said of it so far."""

    kind: Kind
    name: str
    value: str
    reserved: bool = False
    due: int = 0
    stated: int = -1
    mentions: int = 0


class _Dice:
    """Draws from uniform doubles only, which NumPy keeps the same from version to version."""

    def __init__(self, *key: int):
        self._rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def below(self, n: int) -> int:
        return int(self._rng.random() * n)

    def pick(self, items: tuple[T, ...] | list[T], skew: float = 1.0) -> T:
        """Pick an item; with a skew above 1 the first items are likelier."""
        return items[int(self._rng.random() ** skew * len(items))]

    def sample(self, items: tuple[T, ...] | list[T], n: int) -> list[T]:
        """Pick n different items in random order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(n)]


class _Page:
    """The text written so far, its length in words and marks, and its look-ups."""

    def __init__(self, dice: _Dice):
        self.dice, self.text, self.length = dice, "", 0
        self.lookups: list[tuple[_Fact, int]] = []
        self.last: _Fact | None = None  # the fact that was mentioned last

    def say(self, sentence: str, *facts: _Fact) -> None:
        """Append a sentence; each `{v}` in it is the next of the facts."""
        if len(facts) == 1 and self.dice.chance(LEAD):
            lead = self.dice.pick(lexicon.LEADS, 2.0)
            if sentence.startswith(("The ", "Where ", "Which ", "What ", "How ", "When ")):
                sentence = sentence[0].lower() + sentence[1:]
            sentence = f"{lead}, {sentence}"
        start = len(self.text)
        if self.text:
            self.text += " "
        first, *rest = sentence.split("{v}")
        self.text += first
        for fact, piece in zip(facts, rest, strict=True):
            position = len(self.text)
            if fact.mentions == 0:
                fact.stated = position
            elif fact.mentions == 1 and "?" in sentence:
                self.lookups.append((fact, position))
            fact.mentions += 1
            self.text += fact.value + piece
        self.length += len(re.findall(r"\w+|[^\w\s]", self.text[start:]))


def _list(facts: list[_Fact]) -> str:
    """Put facts of one kind side by side: name and value, name and value."""
    return f"{facts[0].kind.topic.capitalize()}: {', '.join(f'{f.name} {{v}}' for f in facts)}."


class English:
    """The generator.

    Args:
        facts: bindings per document; the one number that sets how hard recall is.
        seed: another seed gives another, unrelated set of documents.
        words: least length of a document in words and punctuation marks, each of which is about
            one token.
    """

    def __init__(self, facts: int = 24, seed: int = 0, words: int = 1024):
        most = KINDS_PER_DOCUMENT * len(lexicon.PEOPLE)
        if not KINDS_PER_DOCUMENT <= facts <= most:
            raise ValueError(f"facts={facts}: choose {KINDS_PER_DOCUMENT} to {most}")
        self.facts, self.seed, self.words = facts, seed, words

    def document(self, split: str, index: int) -> Document:
        """Write one document.

        Args:
            split: one of `SPLITS`.
            index: which document of the split, from 0.

        Returns:
            The document; the same arguments always give the same one.
        """
        dice = _Dice(self.seed, SPLITS.index(split), index)
        facts = self._facts(dice)
        page = _Page(dice)
        topics = list(dict.fromkeys(fact.kind.topic for fact in facts))
        page.say(f"These pages are about {', '.join(topics[:-1])} and {topics[-1]}.")
        for topic in topics:
            group = [fact for fact in facts if fact.kind.topic == topic]
            for fact in group:
                self._idle(page)
                page.say(self._wording(dice, fact), fact)
        opening = page.length
        for fact in facts:
            fact.due = opening + dice.below(max(self.words - opening, 1)) if fact.reserved else 0
        while page.length < self.words:
            self._idle(page)
            self._mention(page, facts)
        return Document(page.text, tuple(self._lookup(dice, facts, *each) for each in page.lookups))

    def _facts(self, dice: _Dice) -> list[_Fact]:
        """Draw names and values; people differ in every kind while there are values enough."""
        kinds = dice.sample(KINDS, KINDS_PER_DOCUMENT)
        people = dice.sample(lexicon.PEOPLE, -(-self.facts // len(kinds)))
        facts = []
        for kind in kinds:
            values = dice.sample(kind.values, min(len(people), len(kind.values)))
            while len(values) < len(people):
                values.append(dice.pick(kind.values))
            facts += [
                _Fact(kind, name, value, dice.chance(RESERVED))
                for name, value in zip(people, values, strict=True)
            ]
        facts = facts[: self.facts]
        facts[0].reserved = facts[-1].reserved = False  # so that there is always one to mention
        return facts

    def _wording(self, dice: _Dice, fact: _Fact) -> str:
        """Word a fact: mostly as a question and its answer, sometimes as a plain statement."""
        kind, usual = fact.kind, f"{{n}} {fact.kind.predicate}"
        if dice.chance(STATED):
            sentence = f"{kind.noun if dice.chance(0.3) else usual}."
        else:
            sentence = f"{kind.question} {usual if dice.chance(0.2) else kind.reply}."
        return sentence.replace("{n}", fact.name)

    def _mention(self, page: _Page, facts: list[_Fact]) -> None:
        """Come back to a fact: a reserved one that is due, or one of the others."""
        dice = page.dice
        due = [f for f in facts if f.reserved and f.due <= page.length]
        if dice.chance(LISTED):
            for fact in due:
                fact.reserved = False
            some = dice.pick([f for f in facts if not f.reserved])
            group = [f for f in facts if f.kind is some.kind and not f.reserved]
            group = group[group.index(some) :][: 2 + dice.below(3)]
            page.say(_list(group), *group)
            return
        if due:
            fact = dice.pick(due)
            fact.reserved = False
        else:
            fact = dice.pick([f for f in facts if not f.reserved and f is not page.last], 1.5)
            page.last = fact
            if fact.kind.hint and dice.chance(HINT):
                hint = fact.kind.hints[fact.kind.values.index(fact.value)]
                fact.mentions += 2  # never a look-up afterwards: the hint gave it away
                page.say(fact.kind.hint.replace("{n}", fact.name).replace("{h}", hint) + ".")
                return
        page.say(self._wording(dice, fact), fact)

    def _idle(self, page: _Page) -> None:
        """Now and then, remark on something that has nothing to do with any fact."""
        dice = page.dice
        if not dice.chance(REMARK):
            return
        when = dice.pick(lexicon.TIMES, 2.0)
        if dice.chance(0.3):
            page.say(f"It {dice.pick(lexicon.WEATHER, 2.0)} {when}.")
            return
        place = f"the {dice.pick(lexicon.ADJECTIVES, 2.0)} {dice.pick(lexicon.SCENES, 2.0)}"
        who, did = dice.pick(lexicon.CREATURES, 2.0), dice.pick(lexicon.DEEDS, 2.0)
        page.say(f"The {who} {did} near {place} {when}.")

    def _lookup(self, dice: _Dice, facts: list[_Fact], fact: _Fact, position: int) -> Lookup:
        """Turn a fact's second mention into a question with four choices."""
        bound = [f.value for f in facts if f.kind is fact.kind and f.value != fact.value]
        wrong = list(dict.fromkeys(dice.sample(bound, len(bound)) + list(fact.kind.values)))
        wrong = [value for value in wrong if value != fact.value][:3]
        choices = tuple(dice.sample([fact.value, *wrong], 4))
        return Lookup(position, fact.stated, fact.value, choices)
