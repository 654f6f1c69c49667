"""How fast a ridge sweep is: nine fits from cached moments beside one fit of scikit-learn.

Shapes are those of the embedded pair; times do not depend on the numbers, which are random. The
floor of the pass is its matrix products, 2 N X (X + Y) operations, at the rate that a large float64
product reaches on this machine, measured between the repeats.

    python benchmarks/fit_speed.py [--rows N] [--repeats R] [--threads T]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Literal

import torch
from sklearn.linear_model import Ridge as ScikitRidge
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from kvmap.features import rows
from kvmap.kv import KV, KVPair, KVShape
from kvmap.moments import Calibration, Moments
from kvmap.selection import select, single_layer_r2
from kvmap.solve import solve

SOURCE, TARGET = KVShape(3, 4, 32), KVShape(16, 4, 32)
KS: tuple[int | Literal["all"], ...] = (1, 2, "all")
LAMBDAS = (1e-7, 1e-5, 1e-3)
TOKENS, DOCUMENTS = 256, 16  # kept tokens of a document, documents of a batch


def random_pair(documents: int, seed: int) -> KVPair:
    draw = torch.Generator().manual_seed(seed)

    def kv(shape: KVShape) -> KV:
        size = (shape.layers, documents, shape.heads, TOKENS, shape.head_dim)
        return KV(torch.randn(size, generator=draw), torch.randn(size, generator=draw))

    return KVPair(kv(SOURCE), kv(TARGET))


def moments_pass(pair: KVPair) -> Moments:
    moments = Moments.zeros(SOURCE, TARGET)
    for start in range(0, pair.source.keys.shape[1], DOCUMENTS):
        batch = slice(start, start + DOCUMENTS)
        moments.update(KVPair(*(KV(*(part[:, batch] for part in kv)) for kv in pair)))
    return moments


def nine_fits(calibration: Calibration) -> None:
    for ridge_lambda in LAMBDAS:
        ranking = single_layer_r2(calibration, "both", ridge_lambda)  # one for every k
        for k in KS:
            solve(calibration, select(ranking, k), "both", ridge_lambda)  # weights and scores


def seconds(work: Callable[[], object]) -> float:
    # With one thread its own time, which other programs do not lengthen by waiting.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    work()
    return clock() - started


def product_rate(size: int = 3072) -> float:
    """Operations per second of a square float64 product, the best of three."""
    square = torch.randn(size, size, dtype=torch.float64)
    return 2 * size**3 / min(seconds(lambda: square @ square) for _ in range(3))


def main() -> None:
    """Measure, interleaved, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=49_152, help="fit rows (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    threadpool_limits(arguments.threads)

    fit = random_pair(max(2, arguments.rows // TOKENS), 0)
    selection = moments_pass(random_pair(max(2, arguments.rows // TOKENS // 6), 1))
    calibration = Calibration(moments_pass(fit), selection)
    everything = slice(None), slice(None)
    wide, narrow = torch.empty(0, dtype=torch.float64), torch.empty(0)
    work = (
        2 * calibration.fit.n * len(selection.sum_x) * (len(selection.sum_x) + len(selection.sum_y))
    )
    nine_fits(calibration)  # warm

    names = ("pass", "nine", "ridge64", "ridge32", "rate")
    measured: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.repeats):
        measured["rate"].append(product_rate())
        measured["pass"].append(seconds(lambda: moments_pass(fit)))
        measured["nine"].append(seconds(lambda: nine_fits(calibration)))
        measured["rate"].append(product_rate())
        for name, like in (("ridge64", wide), ("ridge32", narrow)):
            x = rows(fit.source, *everything, like).numpy()
            y = rows(fit.target, *everything, like).numpy()
            measured[name].append(seconds(lambda x=x, y=y: ScikitRidge().fit(x, y)))  # type: ignore[misc]
            del x, y
    median = {name: statistics.median(times) for name, times in measured.items()}
    one_pass, nine, rate = median["pass"], median["nine"], median["rate"]
    print(
        f"{calibration.fit.n:,} rows, X {len(selection.sum_x)}, Y {len(selection.sum_y):,}, ",
        end="",
    )
    print(f"{torch.get_num_threads()} threads, median of {arguments.repeats}\n")
    print(
        "| what | seconds | of scikit-learn float64 | of scikit-learn float32 |\n|---|---|---|---|"
    )
    for what, time_s in (
        ("moments pass (float64)", one_pass),
        ("nine fits with scores, from moments", nine),
        ("pass and nine fits", one_pass + nine),
        ("scikit-learn Ridge, one fit, float64", median["ridge64"]),
        ("scikit-learn Ridge, one fit, float32", median["ridge32"]),
    ):
        shares = " | ".join(f"{time_s / median[name]:.3f}" for name in ("ridge64", "ridge32"))
        print(f"| {what} | {time_s:.3f} | {shares} |")
    print(
        f"\npass: {work / 1e9:.0f} GFLOP, floor {work / rate:.2f} s; {work / one_pass / 1e9:.0f} ",
        end="",
    )
    print(f"GFLOP/s of {rate / 1e9:.0f} (float64 product): {work / one_pass / rate:.0%}")


if __name__ == "__main__":
    main()
