"""Figures of the mapper's run: R² of layer pairs, R² against k, diagnostics along the depth."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from matplotlib.ticker import MaxNLocator

from kvmap.errors import KVMapError
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import COSINE, INK, KEYS, VALUES, figure, plain, say
from kvmap.jsonfile import read_json
from kvmap.plots import r2_heatmap
from kvmap.report import LAYERS, PREDICTABILITY

TITLES = {
    "r2_keys": "R² of keys",
    "r2_values": "R² of values",
    "attention_cosine": "cosine of attention outputs",
    "key_error_concentration": "key error concentration",
    "value_error_concentration": "value error concentration",
}


@dataclass(frozen=True)
class TrainingRun:
    """What a training run left beside its export.

    Attributes:
        keys: R² of keys by (source, target) layer; NaN where it is not defined, as in the others.
        values: The same of values.
        ks: Numbers of source layers.
        keys_at_k: R² of keys at each.
        values_at_k: R² of values at each.
        diagnostics: By name, one number a target layer; None where it is not defined.
    """

    keys: list[list[float]]
    values: list[list[float]]
    ks: list[int]
    keys_at_k: list[float]
    values_at_k: list[float]
    diagnostics: dict[str, list[float | None]]

    @classmethod
    def beside(cls, export: Path) -> Self | None:
        """Of the run that an export lies in; None where its folder is not there.

        Raises:
            KVMapError: A file is damaged.
        """
        folder = export.parent
        if not (folder / PREDICTABILITY).is_file() or not (folder / LAYERS).is_file():
            return None
        found = read_json(folder / PREDICTABILITY, "what linear maps reach")
        try:
            with (folder / LAYERS).open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            by_layer, against_k = found["by_layer"], found["against_k"]
            return cls(
                keys=[_numbers(row) for row in by_layer["keys"]],
                values=[_numbers(row) for row in by_layer["values"]],
                ks=against_k["k"],
                keys_at_k=_numbers(against_k["keys"]),
                values_at_k=_numbers(against_k["values"]),
                diagnostics={
                    name: [_defined(row[name]) for row in rows]
                    for name in TITLES
                    if rows and name in rows[0]
                },
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KVMapError(
                f"{folder} holds a damaged {LAYERS} or {PREDICTABILITY} ({error}); train again"
            ) from error


def _numbers(values: list[float | None]) -> list[float]:
    """JSON's null, for what is not defined, as NaN."""
    return [math.nan if value is None else float(value) for value in values]


def _defined(cell: str) -> float | None:
    """A cell of the layers' table; None where the diagnostic is not defined."""
    number = float(cell) if cell not in ("", "None") else math.nan
    return None if math.isnan(number) else number


def training_sections(run: TrainingRun) -> list[Section]:
    """All figures of a run."""
    keys, values = torch.tensor(run.keys), torch.tensor(run.values)
    heat = (
        "How much of the variance of a target layer's {what} (across) a linear map from one single "
        "source layer (down) explains, on the selection documents, which the map was not fitted "
        "on: 1 (yellow) is all, 0 (dark) is none. A column's brightest cell is the source layer "
        "that tells that target layer most; a column that is dark throughout cannot be had from "
        "any one source layer. A bright diagonal means that layers at equal relative depth say "
        "the same."
    )
    return [
        Section("r2_keys", "R² by layer pair: keys", heat.format(what="keys"),
                r2_heatmap(keys, "R² of keys"), _best_layers(run.keys)),
        Section("r2_values", "R² by layer pair: values", heat.format(what="values"),
                r2_heatmap(values, "R² of values"), _best_layers(run.values)),
        _against_k(run),
        _layers(run),
    ]  # fmt: skip


def _best_layers(by_layer: list[list[float]]) -> Table:
    """The source layer that tells each target layer most."""
    rows = []
    for target, column in enumerate(zip(*by_layer, strict=True)):
        known = [layer for layer, number in enumerate(column) if not math.isnan(number)]
        source = max(known, key=lambda layer: column[layer], default=None)
        best = ("-", "-") if source is None else (str(source), f"{column[source]:.3f}")
        rows.append((str(target), *best))
    return Table(("target layer", "best source layer", "R²"), rows)


def _against_k(run: TrainingRun) -> Section:
    drawn = figure(8, 3.6)
    axes = drawn.subplots()
    plain(axes)
    for name, numbers, colour, marker in (
        ("keys", run.keys_at_k, KEYS, "o"),
        ("values", run.values_at_k, VALUES, "s"),
    ):
        axes.plot(run.ks, numbers, color=colour, marker=marker)
        for k, number in zip(run.ks, numbers, strict=True):
            say(axes, f"{number:.2f}", (k, number), colour, xytext=(0, 6), ha="center", fontsize=8)
        say(axes, name, (run.ks[-1], numbers[-1]), colour, xytext=(10, -3), fontsize=10)
    axes.set_xticks(run.ks)
    axes.margins(x=0.12, y=0.18)
    axes.set(xlabel="k, source layers that a target layer reads", ylabel="R² (1 is perfect)")
    rows = [
        (str(k), f"{a:.3f}", f"{b:.3f}")
        for k, a, b in zip(run.ks, run.keys_at_k, run.values_at_k, strict=True)
    ]
    return Section(
        "r2_against_k",
        "R² against the number of source layers read",
        "Variance explained when every target layer reads its k best source layers at once through "
        "a linear map, mean over target layers, on the selection documents. Where the curve is "
        "flat, more source layers only make the mapper larger; where it still rises at its end, "
        "the source has no more to tell a linear map.",
        drawn,
        Table(("k", "R² of keys", "R² of values"), rows),
    )


def _layers(run: TrainingRun) -> Section:
    drawn = figure(10, 3.8)
    left, right_ = drawn.subplots(1, 2)
    lines = (
        (left, "attention_cosine", COSINE, "^", "cosine of attention outputs"),
        (left, "r2_keys", KEYS, "o", "R² of keys"),
        (left, "r2_values", VALUES, "s", "R² of values"),
        (right_, "key_error_concentration", KEYS, "o", "keys"),
        (right_, "value_error_concentration", VALUES, "s", "values"),
    )
    for axes, name, colour, marker, label in lines:
        numbers = run.diagnostics.get(name, [])
        known = [float("nan") if each is None else each for each in numbers]
        axes.plot(range(len(known)), known, color=colour, marker=marker, markersize=4, label=label)
    right_.axhline(1, color=INK, linestyle=":", linewidth=1.2)
    say(right_, "1: evenly spread", (1, 1), INK, xycoords=("axes fraction", "data"), ha="right",
        xytext=(0, -11), fontsize=8)  # fmt: skip
    left.set(xlabel="target layer", ylabel="closeness (1 is perfect)")
    right_.set(xlabel="target layer", ylabel="error concentration")
    for axes in (left, right_):
        plain(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
    layers = range(len(run.diagnostics.get("r2_keys", [])))
    rows = [
        (
            str(layer),
            *(
                "-" if (number := run.diagnostics[name][layer]) is None else f"{number:.3f}"
                for name in run.diagnostics
            ),
        )
        for layer in layers
    ]
    return Section(
        "layers",
        "Closeness and error concentration, layer by layer",
        "The mapper's diagnostics along the target's depth, on the development documents. Left: "
        "cosine between attention outputs with mapped and with exact KV, and the variance "
        "explained; higher is better, 1 is perfect. Right: above 1 the errors lie where queries "
        "read (keys) or where attention looks (values), so they hurt more than their size says; "
        "below 1 they lie where nobody looks.",
        drawn,
        Table(("layer", *(TITLES[name] for name in run.diagnostics)), rows),
    )
