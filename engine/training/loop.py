"""The training loop: steps, validations and checkpoints. A stopped training resumes with bit-identical results."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from engine.measure import peak
from engine.results import Artifact, Event, Metric, Progress
from engine.results.clip import TrainRow
from engine.specs import Refused
from engine.training import checkpoints, distributed, done, logs, precision, step
from engine.training.done import Done, checkpoints_folder, start
from engine.training.meter import Diverged, Meter
from engine.training.optimizers import assign
from engine.training.setup import Setup
from engine.training.step import StepResult, train_step
from engine.training.validation import Stopped, best_metric, row_fields, score, validate

log = logging.getLogger("engine.training")
LATEST, BEST = "latest.pt", "best.pt"


class Training:
    """One training in one process."""

    def __init__(
        self,
        setup: Setup,
        run_dir: Path,
        device_name: str,
        *,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.setup, self._run_dir, self._device_name = setup, run_dir, device_name
        self.done, self._saved_at = Done(), -1
        self._stopped, self._clock = stopped, clock
        self._folder = checkpoints_folder(run_dir)
        self._meter = Meter(setup, clock)
        self._files: logs.Files | None = None
        self._progress = Progress(done=0, total=setup.plan.steps, note="beginning")
        self._notes = list(setup.made.notes)
        if setup.spec.precision == "fp32" and precision.tf32(setup.spec.device):
            self._notes.append(
                "fp32: matrix products and convolutions are computed in TF32, as open_clip's training does"
            )

    def run(self) -> Iterator[Event]:
        """Train from where the last attempt stopped, and yield events.

        If the generator is closed or `stopped` returns true, it saves a checkpoint to continue from before it ends.
        """
        spec, plan = self.setup.spec, self.setup.plan
        self._run_dir.mkdir(parents=True, exist_ok=True)
        best_metric(self.setup)  # refuses a metric that is never measured
        yield from self._resume()
        if self.setup.place.first:
            self._files = logs.Files(self._run_dir, spec)
            for note in (*self.setup.pairs.notes, *self._notes):
                log.info("%s", note)
        try:
            # all processes must ask each time: one that has finished waits here for the first one's validation.
            # A training that was stopped at its last step must still end the last epoch
            while not self._stopping() and (self.done.step < plan.steps or self.done.batch):
                yield from self._epoch()
            self._save_unless_saved()
        except GeneratorExit:  # not after other errors, which may leave half a step
            with suppress(Diverged):
                self._meter.read(self.done)
                self._save_unless_saved()
            raise
        finally:
            if self._files:
                self._files.close()
        if self.setup.place.first:
            yield from self._left()

    def _resume(self) -> Iterator[Event]:
        """Load this run's newest checkpoint, or the one that the request names, and yield the rows and points before
        it."""
        begun = start(self._run_dir, self.setup.spec.resume, self.setup.roots)
        self._notes += begun.notes
        if begun.checkpoint is None:
            if self.setup.place.first:  # an earlier attempt may have ended before its first checkpoint
                logs.clear(self._run_dir)
            return
        (state, path), origin = begun.checkpoint, begun.run_dir
        roots = None if origin == self._run_dir else self.setup.roots
        changed = done.changes(self.setup.spec, path, checkpoints.request(path, roots))
        self._load(state)
        if origin != self._run_dir:
            done.check_left(self.done, self.setup.plan.steps, path)
        self._notes += [*changed, f"continued from {path.name} at step {self.done.step}"]
        self._saved_at = self.done.step if origin == self._run_dir else -1
        if self.setup.place.first:
            reached, validated = (self.done.step, self.done.epoch), self.done.batch == 0
            points = logs.carry(origin, self._run_dir, *reached, validated=validated, roots=roots)
            for row in self.done.rows:
                yield TrainRow.model_validate(row)
            yield from points

    def _epoch(self) -> Iterator[Event]:
        setup, plan, done = self.setup, self.setup.plan, self.done
        accumulate = setup.spec.accum_freq
        batches = setup.batches.of(done.epoch, done.batch)
        setup.network.train()
        while done.batch < plan.batches and done.step < plan.steps:
            begun = self._clock()
            step.seed(setup.spec.seed, done.step, setup.place.rank)
            taken = [self._to_device(next(batches)) for _ in range(accumulate)]
            loaded = self._clock()
            result = self._step(taken)
            done.step, done.batch = done.step + 1, done.batch + accumulate
            done.samples += plan.batch_size * setup.place.world_size * accumulate
            self._meter.add(done, result, data_s=loaded - begun, seconds=self._clock() - begun)
            saving = setup.spec.save_every_steps and done.step % setup.spec.save_every_steps == 0
            logging_now = self._logs_now()
            if saving or logging_now:
                self._meter.read(self.done)
            if logging_now:
                yield from self._tell(result)
            if setup.place.first:
                yield self._progress
            if saving:
                self._save(LATEST)
            if (logging_now or not self._asking_waits) and self._stopping():
                self._meter.read(self.done)
                return
        yield from self._end_of_epoch()

    @property
    def _asking_waits(self) -> bool:
        """Return whether agreeing on a stop waits for the accelerator and so empties its queue of work."""
        return self.setup.place.world_size > 1 and self.setup.place.device != "cpu"

    def _logs_now(self) -> bool:
        """Return whether the current step gets a line in the log. All processes of a training return the same."""
        plan, done, every = self.setup.plan, self.done, self.setup.spec.log_every_n_steps
        return done.step % every == 1 or every == 1 or done.batch == plan.batches or done.step == plan.steps

    def _to_device(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        images, tokens = batch
        return self.setup.reader.images(images), tokens.to(self.setup.place.device, non_blocking=True)

    def _step(self, taken: list[tuple[torch.Tensor, torch.Tensor]]) -> StepResult:
        setup = self.setup
        assign(setup.optimizer, setup.lr(self.done.step))
        return train_step(
            setup.network,
            taken,
            setup.objective,
            setup.optimizer,
            autocast=setup.reader.autocast,
            scaler=setup.scaler,
            clip_norm=setup.spec.grad_clip_norm,
            no_sync=getattr(setup.network, "no_sync", nullcontext),
        )

    def _tell(self, result: StepResult) -> Iterator[Event]:
        """Yield a point of every curve and write a line to the log. Times are means since the last line."""
        setup, plan, done = self.setup, self.setup.plan, self.done
        together = distributed.averaged(
            torch.stack([loss.detach().float() for loss in result.losses.values()]), setup.place
        )
        window = self._meter.window()
        if not setup.place.first:
            return
        losses = dict(zip(result.losses, together.tolist(), strict=True))
        logit_scale = float(result.logit_scale)
        data_s, step_s = window.data_s / window.steps, window.step_s / window.steps
        of_epoch = done.batch // setup.spec.accum_freq
        per_step = plan.batch_size * setup.place.world_size * setup.spec.accum_freq
        lr = setup.optimizer.param_groups[0]["lr"]
        log.info(
            logs.line(
                epoch=done.epoch,
                samples=of_epoch * per_step,
                of=len(setup.pairs.train),
                data_s=data_s,
                step_s=step_s,
                per_step=per_step,
                processes=setup.place.world_size,
                lr=lr,
                logit_scale=logit_scale,
                losses={
                    name: (value, done.mean_loss(of_epoch) if name == "loss" else value)
                    for name, value in losses.items()
                },
            )
        )
        values = {
            **{f"train/{name}": value for name, value in losses.items()},
            "train/lr": lr,
            "train/logit_scale": logit_scale,
            "train/grad_norm": float(result.grad_norm),
            "train/samples_per_s": per_step / step_s,
            "train/data_s": data_s,
            "train/step_s": step_s,
        }
        if (memory := peak.so_far(setup.place.device)) is not None:
            values["train/memory_mb"] = memory
        yield from self._metrics(values)
        left = (plan.steps - done.step) * done.seconds / done.step  # with validations, which take their share
        note = f"epoch {done.epoch + 1} of {plan.epochs}, loss {losses['loss']:.3f}, {per_step / step_s:.0f} "
        self._progress = Progress(done=done.step, total=plan.steps, note=f"{note}pairs/s", seconds_left=left)

    def _metrics(self, values: Mapping[str, float]) -> list[Metric]:
        """Return the points of the curves at this step, after writing them to TensorBoard and the history."""
        step = self.done.step
        points = [Metric(step=step, name=name, value=value) for name, value in values.items() if math.isfinite(value)]
        assert self._files is not None
        self._files.metrics(points)
        return points

    def _end_of_epoch(self) -> Iterator[Event]:
        """Validate, save a checkpoint and yield the epoch's row. If it is stopped during validation, the epoch has not
        ended."""
        setup, ended = self.setup, self.done.fresh_epoch
        if not setup.place.first:
            self.done = ended
            return
        self._save_unless_saved()  # a validation may take longer than a stop is allowed to
        begun = self._clock()
        last = ended.step >= setup.plan.steps
        try:
            found = yield from validate(setup, ended.epoch, self._progress, last=last, stopped=self._stopped)
        except Stopped:
            return
        ended.seconds += self._clock() - begun
        loss = self.done.mean_loss(self.done.batch // setup.spec.accum_freq)
        value = score(setup, found, loss)
        best = value is not None and (ended.best is None or value > ended.best)
        ended.best = value if best else ended.best
        keep = bool(setup.spec.save_frequency and ended.epoch % setup.spec.save_frequency == 0) or last
        name = f"epoch_{ended.epoch}.pt" if keep else LATEST
        row = self._row(ended, loss, found, name, best=best)
        ended.rows = [*self.done.rows, row.model_dump(mode="json")]
        self.done = ended
        metrics: list[Metric] = []
        if found:
            assert self._files is not None
            self._files.results({**found, "epoch": ended.epoch, "num_samples": len(setup.pairs.val or ())})
            metrics = self._metrics({f"val/{name}": value for name, value in found.items()})
        self._save(name)
        if best:
            self._save(BEST)
        checkpoints.prune(self._folder, setup.spec.keep_last, keep={BEST, LATEST, name})
        yield row
        yield from metrics

    def _row(self, ended: Done, loss: float, found: Mapping[str, float], name: str, *, best: bool) -> TrainRow:
        """Return the row of an epoch. ended: the progress of the training at its end."""
        setup, done = self.setup, self.done
        spec, plan = setup.spec, setup.plan
        return TrainRow(
            library="open_clip",
            model=spec.model,
            device=spec.device,
            device_name=self._device_name,
            precision=spec.precision,
            tf32=precision.tf32(spec.device),
            cudnn_benchmark=torch.device(spec.device).type == "cuda" and torch.backends.cudnn.benchmark,
            epoch=ended.epoch,
            step=ended.step,
            samples_seen=ended.samples,
            train_loss=loss,
            val_batch_size=plan.batch_size if "clip_val_loss" in found else None,
            lr=setup.optimizer.param_groups[0]["lr"],
            logit_scale=float(setup.model.logit_scale.detach().exp()),  # type: ignore[operator]
            samples_per_s=done.batch * plan.batch_size * setup.place.world_size / done.step_seconds,
            data_share=done.data_seconds / done.step_seconds,
            seconds=ended.seconds,
            peak_memory_mb=peak.so_far(setup.place.device),
            checkpoint=f"{self._folder.name}/{name}",
            best=best,
            notes=(*setup.pairs.notes, *self._notes),
            **row_fields(found),
        )

    def _stopping(self) -> bool:
        return distributed.agree(self._stopped(), self.setup.place)

    def _save_unless_saved(self) -> None:
        if self.setup.place.first and self.done.step and self._saved_at != self.done.step:
            self._save(LATEST)

    def _save(self, name: str) -> None:
        if not self.setup.place.first:
            return
        setup, done = self.setup, self.done
        state = {
            "epoch": done.epoch,
            "name": setup.spec.model,
            "state_dict": setup.model.state_dict(),
            "optimizer": setup.optimizer.state_dict(),
            "vitals": {"done": asdict(done), "config": setup.made.config},
        }
        if setup.scaler is not None:
            state["scaler"] = setup.scaler.state_dict()
        checkpoints.save(
            self._folder,
            name,
            state,
            about={"epoch": done.epoch, "step": done.step, "spec": setup.spec.model_dump(mode="json")},
        )
        self._saved_at = done.step

    def _load(self, state: dict[str, Any]) -> None:
        """Restore model, optimizer, scaler and progress from a checkpoint's content.

        Errors: Refused if it is not the checkpoint of a training.
        """
        setup = self.setup
        if not {"state_dict", "optimizer", "epoch"} <= state.keys():
            raise Refused("only weights are in there, nothing to continue from: begin with them (--pretrained)")
        weights = {name.removeprefix("module."): tensor for name, tensor in state["state_dict"].items()}
        setup.model.load_state_dict(weights)
        setup.optimizer.load_state_dict(state["optimizer"])
        if setup.scaler is not None and "scaler" in state:
            setup.scaler.load_state_dict(state["scaler"])
        if "vitals" not in state:  # written by open_clip's own training, which saves at the end of an epoch
            epoch, plan = int(state["epoch"]), setup.plan
            self.done = Done(step=epoch * plan.steps_per_epoch, epoch=epoch)
            self._notes.append("the checkpoint is not ours: dropout and crops differ from those it would have drawn")
            return
        self.done = Done(**state["vitals"]["done"])

    def _left(self) -> Iterator[Event]:
        """Yield the checkpoints and log files as artifacts, then the final progress."""
        for path in sorted(self._folder.glob("*.pt")):
            yield Artifact(name=f"{self._folder.name}/{path.name}", kind="checkpoint")
        for name in (logs.PARAMS, logs.RESULTS, logs.HISTORY):
            if (self._run_dir / name).is_file():
                yield Artifact(name=name, kind="log")
        yield Progress(done=self.done.step, total=self.setup.plan.steps)
