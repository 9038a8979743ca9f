"""Comparisons of results (`same`, `identical`, `deviation`) against numbers by hand, at both sides of each limit."""

import math

import pytest
import torch
from torch._dynamo.utils import same as torch_same

from engine.measure.accuracy import deviation, identical, relative, rmse, same, tolerance
from engine.specs import ModelName


def tensor(value: float, elements: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((elements,), value, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "training", "frozen", "expected"),
    [
        ("timm:resnet18", False, False, 1e-3),
        ("timm:resnet18", True, False, 1e-2),
        ("timm:mobilenetv3_large_100", True, False, 4e-2),
        ("timm:mobilenetv3_large_100", False, False, 1e-3),
        ("timm:levit_128", True, False, 8e-2),
        ("timm:botnet26t_256", False, True, 8e-2),
        ("timm:botnet26t_256", False, False, 1e-3),
        ("timm:resnet18", False, True, 1e-3),
        ("open_clip:ViT-B-32", True, False, 1e-2),
    ],
)
def test_tolerance_of_models(name: str, training: bool, frozen: bool, expected: float) -> None:
    assert tolerance(ModelName(name), training=training, frozen=frozen) == expected


def test_results_within_the_tolerance_are_the_same() -> None:
    # |result - eager| <= tol + tol x |eager|: 0.002 at 1
    assert same(tensor(1), tensor(1.0019), tensor(1, dtype=torch.float64), 1e-3)


@pytest.mark.parametrize(
    ("elements", "dtype", "tol", "factor"),
    [
        (1000, torch.float32, 1e-3, 2),
        (999, torch.float32, 1e-3, 3),
        (1000, torch.bfloat16, 1e-3, 3),
        (1000, torch.float16, 1e-3, 3),
        (1000, torch.float32, 2e-2, 3),
        (1000, torch.float32, 1.9e-2, 2),
    ],
)
def test_result_may_be_a_multiple_of_the_eager_error_off(
    elements: int, dtype: torch.dtype, tol: float, factor: int
) -> None:
    """Eager is 1 off, so the limit is factor x 1 + tol / 10. All values are exact in every dtype."""
    reference = tensor(0, elements, torch.float64)
    eager = tensor(1, elements, dtype)
    assert same(eager, tensor(-factor, elements, dtype), reference, tol)
    assert not same(eager, tensor(-factor - 0.25, elements, dtype), reference, tol)


@pytest.mark.parametrize(("shape", "factor"), [((2000, 1, 1, 1), 3), ((500, 1, 2, 2), 2), ((2000, 1), 2)])
def test_weights_of_pointwise_convolutions_have_factor_three(shape: tuple[int, ...], factor: int) -> None:
    """The factor is that of `torch._dynamo.utils.same`."""
    reference = torch.zeros(shape, dtype=torch.float64)
    for distance, expected in ((factor, True), (factor + 0.25, False)):
        result = torch.full(shape, -float(distance))
        assert same(torch.ones(shape), result, reference, 1e-3) == expected
        assert torch_same(torch.ones(shape), result, reference, cos_similarity=False, tol=1e-3) == expected


def test_a_tenth_of_the_tolerance_is_added_to_the_limit() -> None:
    reference, eager = tensor(0, 1000, torch.float64), tensor(1, 1000)
    assert same(eager, tensor(-2.00009, 1000), reference, 1e-3)
    assert not same(eager, tensor(-2.00011, 1000), reference, 1e-3)


def test_cosine_similarity_is_compared_without_a_reference() -> None:
    eager = torch.tensor([1.0, 0.0])

    def at_angle(cosine: float) -> torch.Tensor:
        return 5 * torch.tensor([cosine, math.sqrt(1 - cosine**2)])

    assert same(eager, at_angle(0.9901), None, 1e-3)
    assert not same(eager, at_angle(0.9899), None, 1e-3)


def test_nan_is_not_the_same() -> None:
    broken = tensor(math.nan, 1000)
    assert not same(tensor(1, 1000), broken, tensor(1, 1000, torch.float64), 1e-3)
    assert not same(tensor(1, 2), tensor(math.nan, 2), None, 1e-3)


def test_half_precision_may_overflow_where_eager_does() -> None:
    eager = torch.tensor([1.0, math.nan], dtype=torch.float16)
    assert same(eager, eager.clone(), eager.double(), 1e-3)
    assert not same(eager, torch.tensor([math.nan, 1.0], dtype=torch.float16), eager.double(), 1e-3)
    assert not same(eager.float(), eager.float(), eager.double(), 1e-3), "float32 must not overflow"


def test_types_shapes_and_nesting_must_be_equal() -> None:
    result, exact = tensor(1), tensor(1, dtype=torch.float64)
    assert not same(result, result.to(torch.bfloat16), exact, 1e-3)
    assert not same(result, tensor(1, 2), exact, 1e-3)
    assert not same({"a": result}, {"b": result}, {"a": exact}, 1e-3)
    assert not same([result], [result, result], [exact], 1e-3)
    assert same({"a": [result]}, {"a": [result]}, {"a": [exact]}, 1e-3)
    assert not same([result, torch.tensor(3)], [result, torch.tensor(4)], [exact, torch.tensor(3)], 1e-3)


def test_identical_compares_bit_by_bit() -> None:
    result = torch.tensor([1.0, math.nan])
    assert identical([result], [result.clone()])
    assert not identical([tensor(1)], [tensor(math.nextafter(1.0, 2.0) + 1e-7)])
    assert not identical([result], [result, result])
    assert not identical([tensor(1)], [tensor(1, dtype=torch.float64)])
    assert identical([None, 7], [None, 7])
    assert not identical([None, 7], [None, 8])


def test_root_mean_square() -> None:
    assert rmse(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(math.sqrt(12.5))


def test_deviation_equals_values_by_hand() -> None:
    """abs(delta) / (1 + abs(reference)) is 1/2 and 3/4. All but floating point tensors is ignored."""
    ones, others = torch.tensor([1.0, -3.0]), torch.tensor([2.0, -6.0])
    found = deviation([ones, torch.tensor(4), None, 4], [others, torch.tensor(5), None, 5])
    assert (found["max_deviation"], found["mean_deviation"]) == (0.75, 0.625)
    assert found["std_deviation"] == pytest.approx(math.sqrt(2 * 0.125**2))
    with pytest.raises(ValueError, match="shape"):
        deviation(tensor(1, 2), tensor(1, 3))
    with pytest.raises(ValueError, match="no finite numbers"):
        deviation(tensor(1), tensor(math.nan))
    with pytest.raises(ValueError, match="no floating point tensors"):
        deviation([], [])


class OnMps(torch.Tensor):
    """A tensor on a device without float64."""

    def double(self) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_results_of_a_device_without_float64_are_compared_on_the_cpu() -> None:
    one, other = tensor(1, 2).as_subclass(OnMps), tensor(2, 2).as_subclass(OnMps)
    assert deviation(one, other)["max_deviation"] == 0.5
    assert relative(one, other) == 1


def test_relative_difference_equals_a_sum_by_hand() -> None:
    reference = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]]), "steps": 7}
    doubled, zeros = ({name: factor * value for name, value in reference.items()} for factor in (2, 0))
    assert relative(reference, reference) == 0
    assert relative(reference, doubled) == relative(reference, zeros) == 1
    assert relative(reference, reference | {"a": torch.tensor([3.0, 1.0])}) == pytest.approx(1 / 5)
    assert relative(zeros, zeros) == 0
    assert relative(zeros, reference) == math.inf
