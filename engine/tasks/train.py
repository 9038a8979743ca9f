"""Train CLIP: the task of a TrainSpec."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from engine.measure import environment
from engine.models.clip import weights
from engine.process import joined_cluster, nodes_to_use
from engine.results import Event
from engine.settings import Settings
from engine.specs.train import TrainSpec
from engine.training import precision
from engine.training.distributed import Place
from engine.training.loop import Training
from engine.training.setup import hold, prepare, resolved, used_settings
from engine.training.torchrun import across, launch


def run(spec: TrainSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, points of curves and a row per epoch. Closing this generator saves a checkpoint.

    Errors: Refused; errors of torch.
    """
    other_nodes = nodes_to_use()
    spec = resolved(spec, spec.nproc - sum(share.processes for share in other_nodes.values()))
    precision.set_tf32(spec.device)
    machine = environment.current(spec.device, spec.seed)
    yield machine
    roots = Settings().roots
    if spec.nproc > 1 or spec.pretrained or spec.pretrained_image or spec.pretrained_text or spec.distill_pretrained:
        hold(spec, run_dir, roots)  # refuses invalid data, and records unreadable images for all processes
    yield from weights.fetch(spec, spec.pretrained, roots)
    if spec.loss == "distill":
        yield from weights.fetch(spec.teacher, spec.distill_pretrained, roots)
    if other_nodes:
        with joined_cluster(log_to_driver=True) as ray:
            start = partial(across.Across, ray, other_nodes)
            yield from launch.train_in_processes(spec, run_dir, machine.device_name, start)
    elif spec.nproc > 1:
        yield from launch.train_in_processes(spec, run_dir, machine.device_name)
    else:
        if spec.threads:
            torch.set_num_threads(spec.threads)
        setup = prepare(spec, Place(device=spec.device), run_dir, roots)
        yield machine.model_copy(update={"settings": used_settings(setup)})
        yield from Training(setup, run_dir, machine.device_name).run()
