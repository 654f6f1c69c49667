"""Which arms an evaluation compares, and what each is asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.candidates import NEAREST
from kvmap.evaluation.measure import Work
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.replacement import replacement_arms
from kvmap.evaluation.settings import Sizes
from kvmap.evaluation.summary import SOURCE, TARGET
from kvmap.evaluation.tasks.choices import Choices
from kvmap.evaluation.tasks.continuation import Continuation
from kvmap.evaluation.tasks.greedy import Greedy
from kvmap.evaluation.tasks.lookups import Lookups


@dataclass(frozen=True)
class Lineup:
    """The arms of an evaluation.

    Attributes:
        served: The operating point.
        main: Arms with all look-ups: target, source, the served arm, its window.
        controls: Arms with some look-ups: the repair curve and the other controls.
        windows: Windows of the repair curve, for context used; continuation only.
        curve: The repair curve, least repair first.
        replaced: The served arm with an exact part; continuation of some passages only.
    """

    served: Arm
    main: list[Arm]
    controls: list[Arm]
    windows: list[Arm]
    curve: list[Arm]
    replaced: list[Arm]

    @classmethod
    def around(cls, served: Arm, curve: Sequence[int], nearest: bool, layers: int) -> "Lineup":
        """All arms that a mapper at an operating point is compared with.

        Args:
            served: The operating point.
            curve: Repairs of the repair curve.
            nearest: Whether the pair allows depth_nearest.
            layers: The target's.
        """
        repair, prefix, key = served.repair, served.prefix, served.mapper
        window = Arm("window", repair, prefix)
        points = [Arm("mapped", r, prefix, key) for r in sorted({*curve, repair})]
        controls = [
            Arm("mapped", 0, 0, key),
            *points,
            Arm("exact", repair, prefix),
            Arm("mismatched", repair, prefix, key),
        ]
        if nearest:
            controls.append(Arm("depth_nearest", repair, prefix, NEAREST))
        main = [TARGET, SOURCE, served, window]
        windows = [Arm("window", arm.repair, arm.prefix) for arm in controls]
        return cls(
            served=served,
            main=main,
            controls=[arm for arm in dict.fromkeys(controls) if arm not in main],
            windows=[arm for arm in dict.fromkeys(windows) if arm not in main],
            curve=points,
            replaced=replacement_arms(served, layers),
        )

    def works(self, sizes: Sizes, found: Sequence[Passage]) -> list[Work]:
        """Which arm is asked what about how many passages."""
        text = Continuation(sizes.prompt, sizes.continuation)
        works = []
        for arms, least in ((self.main, sizes.lookups), (self.controls, sizes.other_lookups)):
            for arm in arms:
                works += [
                    Work(text, arm, sizes.passages),
                    Work(Choices(sizes.prompt), arm, sizes.passages),
                    Work(Lookups(), arm, passages_with(found, least)),
                ]
        # Writing is slow, token by token: of the repair curve only its end without repair writes.
        writers = [arm for arm in self.controls if arm not in self.curve or not arm.repair]
        writing = Greedy(sizes.prompt, sizes.greedy_tokens)
        works += [Work(writing, arm, sizes.greedy) for arm in (*self.main, *writers)]
        works += [Work(text, arm, sizes.passages) for arm in self.windows]
        works += [Work(text, arm, sizes.replacement) for arm in self.replaced]
        return [work for work in works if work.passages]


def passages_with(found: Sequence[Passage], lookups: int) -> int:
    """How many passages, from the first, hold so many look-ups; all where there are fewer."""
    asked = 0
    for number, passage in enumerate(found):
        if asked >= lookups:
            return number
        asked += len(passage.lookups)
    return len(found) if asked else 0
