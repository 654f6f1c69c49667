"""How figures look: one colour a party on every page, told apart by colour-blind readers too."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvmap.evaluation.arms import Role
from kvmap.evaluation.statistics import Estimate

SOURCE, MAPPED, TARGET, CONTROL, CHOSEN = "#E69F00", "#0072B2", "#009E73", "#9A9A9A", "#D55E00"
PARTIES: dict[Role, str] = {"source": SOURCE, "mapped": MAPPED, "target": TARGET}
KEYS, VALUES = MAPPED, SOURCE
EDGE = -2.0
"""Gap closed below which figures draw a triangle at their edge."""
STAGES = {
    "prefill": TARGET,
    "source prefill": SOURCE,
    "transfer": "#F0E442",
    "map": MAPPED,
    "repair": "#56B4E9",
    "guard": "#999999",
    "draft": "#CC79A7",
    "verify": "#006B4E",
    "roll back": "#444444",
}
FAMILIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")


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
        axes.grid(axis=grid, color="#DDDDDD", linewidth=0.8)  # type: ignore[arg-type]
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


def family_colours(families: Sequence[str]) -> dict[str, str]:
    """A colour by family, the same for the same families."""
    known = sorted(set(families))
    return {name: FAMILIES[index % len(FAMILIES)] for index, name in enumerate(known)}
