"""Specs of the benchmark of recurrent layers."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS, of_group

FASTRNNS = "cudnn aten jit jit_premul jit_premul_bias jit_simple jit_multilayer py"
"""The runners of the group `rnns` of fastrnns."""
OTHER_RUNNERS = "cudnn_dropout cudnn_layernorm jit_layernorm jit_layernorm_decom jit_dropout vl_cudnn vl_jit vl_py"


def test_defaults_equal_those_of_fastrnns() -> None:
    spec = RecurrentSpec()
    assert (spec.seq_length, spec.num_layers, spec.input_size, spec.hidden_size) == (100, 1, 512, 512)
    assert (spec.mini_batch, spec.warmup, spec.loops, spec.fuser) == (64, 10, 100, "te")
    resnets = {"resnet18", "resnet18_jit", "resnet50", "resnet50_jit"}
    assert set(RecurrentSpec(device="cuda").chosen) == {*FASTRNNS.split(), *resnets}


def test_group_leaves_out_cudnn_runners_on_a_cpu() -> None:
    spec = RecurrentSpec(groups="rnns", device="cpu")
    assert spec.chosen == ("aten", "jit", "jit_premul", "jit_premul_bias", "jit_simple", "jit_multilayer", "py")
    assert spec.left_out == ("cudnn",)
    with_cudnn = RecurrentSpec(groups="rnns", runners="cudnn", device="cpu")
    assert "cudnn" in with_cudnn.chosen
    assert with_cudnn.left_out == ()
    assert RecurrentSpec(device="cuda:0").left_out == ()


def test_every_runner_of_fastrnns_exists() -> None:
    assert set(of_group("rnns")) == set(FASTRNNS.split())
    assert set(OTHER_RUNNERS.split()) < set(RUNNERS)


def test_runners_are_added_to_those_of_the_groups() -> None:
    assert RecurrentSpec(runners="py,aten,py").chosen == ("py", "aten")
    combined = RecurrentSpec(groups="compiled,compiled", runners="py,compile_cell")
    assert combined.chosen == ("compile_cell", "compile_loop", "compile_lstm", "py")


def test_comparisons_have_runners_of_one_family() -> None:
    spec = RecurrentSpec(runners="resnet18,gru_py,aten,gru_jit,vl_py", sweep="seq_length", sweep_values="8,4,8")
    found = [
        (comparison.family, comparison.chosen, comparison.seq_length, comparison.swept)
        for comparison in spec.comparisons
    ]
    assert found == [
        ("resnet", ("resnet18",), 100, ()),  # resnets have no sequence length to sweep
        *(("gru", ("gru_py", "gru_jit"), steps, ()) for steps in (4, 8)),
        *(("lstm", ("aten",), steps, ()) for steps in (4, 8)),
        *(("vl_lstm", ("vl_py",), steps, ()) for steps in (4, 8)),
    ]
    assert all(
        RecurrentSpec.model_validate_json(comparison.model_dump_json()) == comparison for comparison in spec.comparisons
    )


def test_mini_batch_sweep_applies_to_resnets() -> None:
    spec = RecurrentSpec(runners="resnet18", sweep="mini_batch", mini_batch=6)
    assert spec.swept == (2, 3, 6, 12)
    assert [comparison.mini_batch for comparison in spec.comparisons] == [2, 3, 6, 12]


def test_half_batch_is_offered_unless_the_batch_is_swept() -> None:
    assert RecurrentSpec(mini_batch=6).half_batch == 3
    assert RecurrentSpec(mini_batch=6, sweep="mini_batch").half_batch is None
    assert RecurrentSpec(mini_batch=1).half_batch is None


def test_baseline_applies_only_to_its_own_family() -> None:
    spec = RecurrentSpec(runners="aten,py,gru_py", baseline="py")
    assert [(comparison.family, comparison.baseline) for comparison in spec.comparisons] == [
        ("lstm", "py"),
        ("gru", ""),
    ]


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        ({"runners": "aten"}, "aten (100 time steps, batch 64, 512 in, 512 hidden, 1 layer, cpu)"),
        ({"runners": "py", "seq_length": 1}, "py (1 time step, batch 64, 512 in, 512 hidden, 1 layer, cpu)"),
        (
            {"runners": "aten,py", "num_layers": 2, "sweep": "mini_batch", "sweep_values": "2,4,8"},
            "aten, py (100 time steps, batch 2 to 8, 512 in, 512 hidden, 2 layers, cpu)",
        ),
        (
            {"runners": "aten", "sweep": "mini_batch", "sweep_values": "4"},
            "aten (100 time steps, batch 4, 512 in, 512 hidden, 1 layer, cpu)",
        ),
        ({"groups": "cnns", "mini_batch": 2}, "resnet18, resnet18_jit, resnet50 and 1 more (batch 2, 224 px, cpu)"),
    ],
)
def test_summary_names_runners_and_sizes(fields: dict[str, Any], summary: str) -> None:
    assert RecurrentSpec(**fields).summary == summary


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runners": "jitt"}, "no runner is called 'jitt'; closest: jit, vl_jit"),
        ({"groups": "rnn"}, "Input should be 'rnns', 'cnns', 'vl', 'norms', 'compiled' or 'cells'"),
        ({"baseline": "vl_py"}, "the baseline vl_py is not one of the runners to time: aten, jit, jit_premul"),
        ({"baseline": "pi"}, f"there are {', '.join(RUNNERS)}"),
        ({"proj_size": 512}, "projection size 512 is not smaller than hidden size 512: reduce it, or choose 0"),
        ({"sweep_values": "1,2"}, "there are sweep values, but no size to vary"),
        ({"sweep": "seq_length", "sweep_values": "0,3"}, "a sweep of seq_length takes values from 1 to 10,000, not 0"),
        (
            {"sweep": "hidden_size", "proj_size": 100, "sweep_values": "64"},
            "projection size 100 is not smaller than the swept hidden size 64: reduce it, or choose 0",
        ),
        ({"sweep": "mini_batch", "sweep_values": "a"}, "valid integer"),
        ({"device": "meta"}, "nothing runs on meta"),
        ({"seq_length": 0}, "greater than or equal to 1"),
        ({"executor": "fast"}, "Input should be 'default', 'legacy', 'simple' or 'profiling'"),
        ({"image_size": "big"}, "image size 'big' is neither N nor HxW"),
    ],
)
def test_invalid_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        RecurrentSpec(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "processes", "seconds", "below"),
    [
        ({}, 3, 2, False),
        ({"publishable": True}, 5, 10, False),
        ({"replicates": 1}, 1, 2, False),
        ({"replicates": 2}, 2, 2, True),
        ({"loops": 5}, 3, 2, True),
        ({"min_seconds": 0.5}, 3, 0.5, True),
    ],
)
def test_processes_and_floors_depend_on_the_request(
    fields: dict[str, Any], processes: int, seconds: float, below: bool
) -> None:
    spec = RecurrentSpec(**fields)
    assert (spec.processes, spec.floor_seconds, spec.below_floor) == (processes, seconds, below)


@pytest.mark.parametrize(
    ("name", "execution"),
    [
        ("py", "eager"),
        ("vl_jit", "script"),
        ("resnet18_jit", "trace"),
        ("gru_compile_cell", "compile"),
        ("aten", "eager"),
    ],
)
def test_runners_have_an_execution_mode(name: str, execution: str) -> None:
    assert RUNNERS[name].execution == execution
