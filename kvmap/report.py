"""What a run leaves beside its checkpoint and export: metrics, a table per layer, figures."""

import csv
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from kvmap.diagnostics import Diagnostics
from kvmap.jsonfile import write_json
from kvmap.mappers.base import Mapper
from kvmap.moments import Calibration
from kvmap.plots import LayerMetric, per_layer, r2_curve, r2_heatmap
from kvmap.run import METRICS
from kvmap.selection import KCurve, LayerR2, r2_against_k, single_layer_r2
from kvmap.solve import Inputs

LAYERS, PREDICTABILITY = "layers.csv", "predictability.json"


class Predictability(NamedTuple):
    """What linear maps reach on a collection, whatever the run's family.

    Attributes:
        by_layer: R² of single source layers.
        against_k: R² against the number of source layers.
    """

    by_layer: LayerR2
    against_k: KCurve


class Report(NamedTuple):
    """What a run has to tell.

    Attributes:
        metrics: Means over layers of the diagnostics, ``fit_seconds``, ``weights``, and of a
            refined mapper ``selection/loss``.
        diagnostics: The same diagnostics per target layer.
        predictability: Of the collection.
    """

    metrics: dict[str, float]
    diagnostics: Diagnostics
    predictability: Predictability

    @classmethod
    def of(
        cls, mapper: Mapper, calibration: Calibration, selection_loss: float | None = None
    ) -> "Report":
        """Gather a measured mapper's report.

        Heatmap and curve take the run's ``inputs`` where its family has them, so that they say
        what this family could reach; others get the paper's ``own``.
        """
        if mapper.diagnostics is None:
            raise ValueError("the mapper was not measured")
        inputs: Inputs = getattr(mapper, "inputs", "own")
        by_layer = single_layer_r2(calibration, inputs, "auto")
        curve = r2_against_k(calibration, inputs, "auto", r2=by_layer)
        metrics = mapper.diagnostics.means() | {
            "fit_seconds": mapper.fit_seconds,
            "weights": float(mapper.weights),
        }
        if selection_loss is not None:
            metrics["selection/loss"] = selection_loss
        return cls(metrics, mapper.diagnostics, Predictability(by_layer, curve))

    def figures(self) -> dict[str, Figure]:
        """The figures by name."""
        by_layer, curve = self.predictability
        rows = asdict(self.diagnostics).items()
        return {
            "r2_heatmap_keys": r2_heatmap(by_layer.keys, "R² of keys from one source layer"),
            "r2_heatmap_values": r2_heatmap(by_layer.values, "R² of values from one source layer"),
            "r2_against_k": r2_curve(curve.ks, curve.keys, curve.values),
            "layers": per_layer([LayerMetric(name, torch.tensor(v)) for name, v in rows]),
        }

    def layer_table(self) -> list[list[float]]:
        """One row per target layer: its number, then each diagnostic."""
        columns = asdict(self.diagnostics).values()
        return [[layer, *row] for layer, row in enumerate(zip(*columns, strict=True))]

    def save(self, folder: Path) -> None:
        """Write everything into a run's folder; ``metrics.json`` last, as the mark of the end."""
        with (folder / LAYERS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["layer", *Diagnostics.names()])
            writer.writerows(self.layer_table())
        by_layer, curve = self.predictability
        values = {
            "by_layer": {"keys": by_layer.keys.tolist(), "values": by_layer.values.tolist()},
            "against_k": {
                "k": list(curve.ks),
                "keys": curve.keys.tolist(),
                "values": curve.values.tolist(),
            },
        }
        write_json(folder / PREDICTABILITY, values)
        for name, figure in self.figures().items():
            figure.savefig(folder / f"{name}.png")
        write_json(folder / METRICS, self.metrics)
