"""Define the loops around a cell: over time steps, over layers and directions, over sequences of different lengths.

Each loop takes a function and returns a function. TorchScript and torch.compile accept the result as a whole; any inner
function may be scripted or compiled separately instead. Shapes: T time steps, B sequences, L layers times
directions; I, P and H as in cells.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pad_sequence

from engine.models.recurrent.cells import Hoist, State, Step

Layer = Callable[[Tensor, State, list[Tensor], bool], tuple[Tensor, State]]
Result = tuple[Tensor, Tensor, Tensor]
"""The output of the last layer (T, B, P x directions), and all final states: h (L, B, P), c (L, B, H)."""
Layers = Callable[[Tensor, Tensor, Tensor, list[list[Tensor]], int, float], Result]


def over_steps(step: Step, hoist: Hoist) -> Layer:
    """Return one layer in one direction: (xs (T, B, I), state, weights, backwards) -> outputs (T, B, P), last state."""

    def layer(xs: Tensor, state: State, weights: list[Tensor], backwards: bool) -> tuple[Tensor, State]:
        steps = list(hoist(xs, weights).unbind(0))
        if backwards:
            steps.reverse()
        outputs: list[Tensor] = []
        for x in steps:
            state = step(x, state, weights)
            outputs.append(state[0])
        if backwards:
            outputs.reverse()
        return torch.stack(outputs), state

    return layer


def over_layers(layer: Layer) -> Layers:
    """Return stacked layers, in one direction or two. `dropped` is the share of values zeroed between two layers."""

    def layers(
        xs: Tensor, h: Tensor, c: Tensor, weights: list[list[Tensor]], directions: int, dropped: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        for first in range(0, len(weights), directions):
            if first > 0 and dropped > 0:
                xs = dropout(xs, dropped, True)
            outputs: list[Tensor] = []
            for i in range(first, first + directions):
                output, state = layer(xs, (h[i], c[i]), weights[i], i > first)
                outputs.append(output)
                last_h.append(state[0])
                last_c.append(state[1])
            xs = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        return xs, torch.stack(last_h), torch.stack(last_c)

    return layers


def last_state_only(step: Step) -> Callable[[Tensor, list[Tensor], list[Tensor], list[Tensor]], tuple[Tensor, Tensor]]:
    """Return a loop that runs all layers of a time step before the next one and keeps only states. Arguments are flat.

    (xs (T, B, I), h and c by layer, all weights one layer after the other) -> the last h (L, B, P) and c (L, B, H).
    """

    def last(xs: Tensor, h: list[Tensor], c: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        per_layer = len(weights) // len(h)
        layer_weights = [weights[per_layer * i : per_layer * (i + 1)] for i in range(len(h))]
        states = [(h[i], c[i]) for i in range(len(h))]
        for x in xs.unbind(0):
            for i in range(len(states)):
                states[i] = step(x, states[i], layer_weights[i])
                x = states[i][0]
        return torch.stack([state[0] for state in states]), torch.stack([state[1] for state in states])

    return last


def over_sequences(layers: Layers) -> Callable[[Tensor, Tensor, Tensor, list[list[Tensor]], int, list[int]], Result]:
    """Return a loop over sequences, each with its own length. Outputs are padded with zeros to the longest."""

    def sequences(
        xs: Tensor, h: Tensor, c: Tensor, weights: list[list[Tensor]], directions: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs: list[Tensor] = []
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        for i, length in enumerate(lengths):
            sequence = xs[:length, i : i + 1]
            output, h_of_one, c_of_one = layers(sequence, h[:, i : i + 1], c[:, i : i + 1], weights, directions, 0.0)
            outputs.append(output.squeeze(1))
            last_h.append(h_of_one)
            last_c.append(c_of_one)
        return pad_sequence(outputs), torch.cat(last_h, 1), torch.cat(last_c, 1)

    return sequences
