import pytest
import torch

from kvmap.errors import KVMapError
from kvmap.kv import KV
from kvmap.mappers.depth_nearest import DepthNearest, nearest_layers


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (3, 5, [0, 0, 1, 1, 2]),  # layers 1 and 3 lie half-way: the lower one
        (2, 3, [0, 0, 1]),
        (5, 3, [0, 2, 4]),
        (4, 4, [0, 1, 2, 3]),
        (3, 16, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]),
        (1, 4, [0, 0, 0, 0]),
        (6, 1, [0]),
    ],
)
def test_layer_table(source: int, target: int, expected: list[int]) -> None:
    assert nearest_layers(source, target).tolist() == expected


def test_every_target_layer_reads_the_first_of_the_nearest() -> None:
    for source in range(1, 40):
        for target in range(1, 40):
            table = nearest_layers(source, target).tolist()
            for layer, chosen in enumerate(table):
                distances = [abs(s * (target - 1) - layer * (source - 1)) for s in range(source)]
                assert chosen == distances.index(min(distances))


def test_heads_keep_their_numbers_and_nothing_is_learned() -> None:
    mapper = DepthNearest([2, 3, 4], [3, 3, 4])
    source = KV(torch.randn(2, 1, 3, 5, 4), torch.randn(2, 1, 3, 5, 4))
    mapped = mapper(source)
    assert torch.equal(mapped.keys, source.keys[[0, 0, 1]])
    assert torch.equal(mapped.values, source.values[[0, 0, 1]])
    assert not list(mapper.parameters())


@pytest.mark.parametrize("target", [[3, 2, 4], [3, 3, 8]])
def test_unmatched_kv_is_refused_naming_both_shapes(target: list[int]) -> None:
    with pytest.raises(KVMapError, match=r"heads=3, head_dim=4.*heads="):
        DepthNearest([2, 3, 4], target)
