"""How figures look: one colour a party on every page, told apart by colour-blind readers too.

Hues from Okabe and Ito's palette say who: orange the source, blue what is mapped, green the target,
grey the controls. Families, and keys against values, have colours outside of these.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvmap.evaluation.arms import Role
from kvmap.evaluation.statistics import Estimate
from kvmap.families import families

SOURCE, MAPPED, TARGET, CONTROL, CHOSEN = "#E69F00", "#0072B2", "#009E73", "#7A7A7A", "#D55E00"
PARTIES: dict[Role, str] = {"source": SOURCE, "mapped": MAPPED, "target": TARGET}
KEYS, VALUES, COSINE = "#40237A", "#CC79A7", "#444444"
INK = "#333333"
EDGE = -2.0
"""Gap closed below which figures draw a triangle at their edge."""
STAGES = {
    "tokenise": "#DDDDDD",
    "queue": "#BBBBBB",
    "source prefill": SOURCE,
    "transfer": "#9ECAE1",
    "map": MAPPED,
    "repair": "#7CCFB0",
    "prefill": TARGET,
    "guard": "#999999",
    "draft": "#F7D58B",
    "verify": "#00513B",
    "roll back": "#555555",
}
"""By stage, in the order of an answer: tints of whoever works."""
DECODING = ("draft", "verify", "roll back")
"""Stages after the first token."""


def figure(width: float, height: float) -> Figure:
    """An empty figure, of inches; nothing global is touched."""
    made = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(made)
    return made


def plain(axes: Axes, grid: str = "y") -> None:
    """No frame, a faint grid along one axis."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#E4E4E4", linewidth=0.8)  # type: ignore[arg-type]
    axes.tick_params(length=0)


def bars_of(estimates: Sequence[Estimate]) -> list[list[float]]:
    """The distances down and up that matplotlib draws intervals from."""
    return [
        [max(each.value - each.low, 0.0) for each in estimates],
        [max(each.high - each.value, 0.0) for each in estimates],
    ]


def colour_of(role: Role) -> str:
    """A party's colour; controls are grey."""
    return PARTIES.get(role, CONTROL)


FAMILIES = ("#882255", "#56B4E9", "#999933", "#332288", "#CC6677", "#661100")
MARKERS = ("o", "s", "D", "P", "X", "h")
COPY = "depth_nearest"


def family_colour(family: str) -> str:
    """A family's colour, the same on every page; the control that learns nothing is grey."""
    return CONTROL if family == COPY else FAMILIES[_place(family) % len(FAMILIES)]


def family_marker(family: str) -> str:
    """A family's marker, so that colour is not all that tells it."""
    return "." if family == COPY else MARKERS[_place(family) % len(MARKERS)]


def _place(family: str) -> int:
    known = sorted(set(families()) - {COPY})
    return known.index(family) if family in known else len(known)


def family_legend(axes: Axes, shown: Sequence[str], place: str) -> None:
    """A legend of families."""
    for family in sorted(set(shown)):
        axes.plot(
            [],
            [],
            marker=family_marker(family),
            color=family_colour(family),
            linestyle="",
            label=family,
        )
    axes.legend(frameon=False, fontsize=8, loc=place)  # type: ignore[call-overload]


def say(axes: Axes, text: str, at: tuple[float, float], colour: str, **more: object) -> None:
    """A direct label, a few points off its place."""
    plain_words: dict[str, object] = {
        "xytext": (4, 3),
        "textcoords": "offset points",
        "fontsize": 9,
        "color": colour,
    }
    axes.annotate(text, at, **plain_words | more)  # type: ignore[arg-type]
