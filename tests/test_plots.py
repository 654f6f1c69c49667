"""Figures draw what they are given and save as PNG."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from kvmap.plots import LayerMetric, per_layer, r2_curve, r2_heatmap

PNG = b"\x89PNG"


def saved(figure: Figure, folder: Path) -> bytes:
    path = folder / "figure.png"
    figure.savefig(path)
    return path.read_bytes()


@pytest.mark.parametrize("shape", [(3, 16), (1, 1), (36, 64)])
def test_heatmap_has_sources_down_and_targets_across(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    values = torch.rand(shape)
    values[0, -1] = -0.3
    values[-1, 0] = torch.nan
    figure = r2_heatmap(values, "R² of keys")
    axes = figure.axes[0]
    assert axes.get_title() == "R² of keys"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("target layer", "source layer")
    assert axes.images[0].get_size() == shape
    assert saved(figure, tmp_path).startswith(PNG)


def test_curve_draws_keys_and_values_at_their_k(tmp_path: Path) -> None:
    figure = r2_curve([1, 2, 3], torch.tensor([0.5, 0.6, 0.7]), [0.2, 0.3, 0.4])
    keys, values = figure.axes[0].lines
    assert list(np.asarray(keys.get_xdata())) == [1, 2, 3]
    assert list(np.asarray(keys.get_ydata())) == pytest.approx([0.5, 0.6, 0.7])
    assert list(np.asarray(values.get_ydata())) == pytest.approx([0.2, 0.3, 0.4])
    assert saved(figure, tmp_path).startswith(PNG)


def test_per_layer_has_a_panel_for_each_diagnostic(tmp_path: Path) -> None:
    layers = torch.rand(16, dtype=torch.float64)
    layers[0] = torch.nan
    nothing = torch.full((16,), torch.nan)
    figure = per_layer([LayerMetric("r2_keys", layers), LayerMetric("key_error", nothing)])
    assert [axes.get_title(loc="left").split(",")[0] for axes in figure.axes] == [
        "r2_keys",
        "key_error",
    ]
    assert saved(figure, tmp_path).startswith(PNG)


def test_figures_leave_no_global_state() -> None:
    r2_curve([1], [0.5], [0.5])
    per_layer([LayerMetric("r2_keys", torch.rand(3).bfloat16())])
    assert plt.get_fignums() == []
