"""Figures of a run: R² by layer pair, R² against k, and the diagnostics along the depth.

Figures are drawn without pyplot, so nothing global is touched and a sweep leaks no windows;
``figure.savefig(path)`` writes the PNG.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

KEYS_COLOUR = "tab:blue"
VALUES_COLOUR = "tab:orange"
# Cells stay legible with a number in them up to about this many.
MOST_NUMBERED_CELLS = 128


class LayerMetric(NamedTuple):
    """One diagnostic along the target's depth.

    Attributes:
        name: as logged, ``r2_keys`` say.
        layers: ``[L]``, one number per target layer; NaN where it is not defined.
    """

    name: str
    layers: Tensor


def r2_heatmap(values: Tensor, title: str) -> Figure:
    """Single-layer R² of every (source layer, target layer).

    Colours run from 0 to 1; what is below 0 has the colour of 0, NaN is grey. Small heatmaps
    have the number in each cell.

    Args:
        values: ``[L_s, L_t]``.
        title: what the R² is of.
    """
    shown = _plain(values)
    source_layers, target_layers = shown.shape
    figure = _figure(2.5 + 0.45 * min(target_layers, 24), 1.8 + 0.4 * min(source_layers, 24))
    axes = figure.add_subplot()
    axes.set_facecolor("lightgrey")
    image = axes.imshow(
        shown.numpy(), norm=Normalize(0, 1), cmap="viridis", aspect="auto", interpolation="nearest"
    )
    extend = "min" if bool((shown < 0).any()) else "neither"
    figure.colorbar(image, ax=axes, label="R²", extend=extend)
    axes.set(title=title, xlabel="target layer", ylabel="source layer")
    _whole_numbers(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if shown.numel() <= MOST_NUMBERED_CELLS:
        for source, target in torch.isfinite(shown).nonzero().tolist():
            number = float(shown[source, target])
            colour = "black" if number > 0.6 else "white"
            axes.text(
                target, source, f"{number:.2f}", ha="center", va="center", color=colour, fontsize=7
            )
    return figure


def r2_curve(
    ks: Sequence[int], keys: Tensor | Sequence[float], values: Tensor | Sequence[float]
) -> Figure:
    """R² against k, the number of source layers that a target layer reads.

    Args:
        ks: the k of each point, ascending.
        keys: R² of keys at each k, ``[len(ks)]``.
        values: R² of values at each k, ``[len(ks)]``.
    """
    figure = _figure(6, 4)
    axes = figure.add_subplot()
    axes.plot(ks, _plain(keys).tolist(), marker="o", color=KEYS_COLOUR, label="keys")
    axes.plot(ks, _plain(values).tolist(), marker="s", color=VALUES_COLOUR, label="values")
    axes.set(title="R² on the selection documents", xlabel="k, source layers read", ylabel="R²")
    _whole_numbers(axes)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def per_layer(metrics: Sequence[LayerMetric]) -> Figure:
    """Diagnostics along the depth, one panel each above a shared axis of target layers.

    The dashed line is the mean over layers where the diagnostic is defined.

    Args:
        metrics: at least one diagnostic.
    """
    figure = _figure(7, 0.6 + 1.7 * len(metrics))
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for axes, metric in zip(panels, metrics, strict=True):
        layers = _plain(metric.layers)
        axes.plot(range(len(layers)), layers.tolist(), marker="o", markersize=4)
        mean = float(layers.nanmean())
        if mean == mean:
            axes.axhline(mean, linestyle="--", linewidth=1, color="grey")
        axes.set_title(f"{metric.name}, mean {mean:.3f}", fontsize=9, loc="left")
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("target layer")
    _whole_numbers(panels[-1])
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(numbers: Tensor | Sequence[float]) -> Tensor:
    return torch.as_tensor(numbers).detach().to("cpu", torch.float64)


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
