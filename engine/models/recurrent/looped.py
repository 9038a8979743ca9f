"""Build runners that use our own loops around our own cells: plain Python, scripted, or compiled."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import Parameter

from engine.models.recurrent import weights
from engine.models.recurrent.cells import CELLS, Cell, Step, projected
from engine.models.recurrent.loops import last_state_only, over_layers, over_sequences, over_steps
from engine.models.recurrent.network import Network, Run, settings, without_dropout
from engine.models.recurrent.torchscript import scripted
from engine.models.recurrent.weights import Inputs
from engine.models.variants import Numbers, compiled
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS

_compiled = partial(compiled, fullgraph=True, dynamic=False)
"""Compiles a function into one graph per shape, without falling back to Python."""
DROPPED = 0.4
"""Share of the values between two layers that networks with dropout replace by zero, as in fastrnns."""


def build(name: str, spec: RecurrentSpec, types: Numbers) -> Network:
    """Return the network of a runner with our own loop."""
    cell = RUNNERS[name].cell
    # inputs come before the weights: sizes that do not fit in memory fail here, at once
    inputs = weights.inputs(spec).to(spec.device, weights.dtype(spec))
    parameters = {
        place: Parameter(value.to(spec.device, copy=True)) for place, value in weights.drawn(spec, cell).items()
    }
    options = SimpleNamespace(dropout=DROPPED if name.endswith("_dropout") else 0.0)
    layers = _by_layer(spec, cell, parameters)
    return Network(
        name=name,
        capture=partial(_capture, name, spec, inputs, layers, options),
        parameters=parameters,
        cotangent=weights.cotangent(spec, of_states=name == "jit_simple").to(spec.device),
        settings=partial(settings, types),
        checked=partial(without_dropout, options),
    )


def plain(spec: RecurrentSpec, cell: str, parameters: Mapping[str, Parameter], inputs: Inputs) -> Run:
    """Return a run of a cell in plain Python. parameters: under nn.LSTM's names."""
    loop = over_layers(over_steps(_step(spec, CELLS[cell]), CELLS[cell].hoist))
    return partial(_run, loop, spec, inputs, _by_layer(spec, cell, parameters), SimpleNamespace(dropout=0.0))


def _by_layer(spec: RecurrentSpec, cell: str, parameters: Mapping[str, Parameter]) -> list[list[Parameter]]:
    """Return the weights of each layer and direction, in the order in which the cell's step takes them."""
    return [[parameters[f"{name}_{place}"] for name in weights.names(spec, cell)] for place in weights.places(spec)]


def _capture(name: str, spec: RecurrentSpec, inputs: Inputs, layers: list[list[Parameter]], options: Any) -> Run:
    loop = _loop(name, spec)
    if name != "jit_simple":
        return partial(_run, loop, spec, inputs, layers, options)

    def run_flat() -> tuple[torch.Tensor, ...]:
        xs = inputs.x.transpose(0, 1) if spec.batch_first else inputs.x
        final_states: tuple[torch.Tensor, ...] = loop(
            xs, list(inputs.h), list(inputs.c), [weight for layer in layers for weight in layer]
        )
        return final_states

    return run_flat


def _run(
    loop: Callable[..., Any], spec: RecurrentSpec, inputs: Inputs, layers: list[list[Parameter]], options: Any
) -> tuple[torch.Tensor, ...]:
    xs = inputs.x.transpose(0, 1) if spec.batch_first else inputs.x
    extra = inputs.lengths if spec.family == "vl_lstm" else options.dropout
    output, h, c = loop(xs, inputs.h, inputs.c, layers, weights.directions(spec), extra)
    output = output.transpose(0, 1) if spec.batch_first else output
    return (output, h, c) if c.shape[-1] else (output, h)


def _loop(name: str, spec: RecurrentSpec) -> Callable[..., Any]:
    """Return the function that a runner calls."""
    runner = RUNNERS[name]
    cell = CELLS[runner.cell]
    step = _step(spec, cell)
    layer = over_steps(step, cell.hoist)
    whole = over_layers(layer)
    if runner.one_by_one:
        loop = over_sequences(whole)
        return loop if runner.way == "py" else scripted(loop)
    match runner.way:
        case "py":
            return whole
        case "jit" | "jit_premul" | "jit_premul_bias" | "jit_layernorm" | "jit_layernorm_decom":
            return over_layers(scripted(layer))
        case "jit_multilayer" | "jit_dropout":
            return scripted(whole)
        case "jit_simple":
            return scripted(last_state_only(step))
        case "compile_cell":
            return over_layers(over_steps(_compiled(step), cell.hoist))
        case "compile_loop":
            return _compiled(whole)
    raise NotImplementedError(f"_loop in {__name__} has no case for the runner {name}")


def _step(spec: RecurrentSpec, cell: Cell) -> Step:
    return projected(cell.step) if spec.proj_size else cell.step
