"""The training loop: steps, validations and checkpoints. A stopped training resumes with bit-identical results."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from engine.measure import peak
from engine.results import Artifact, Event, Metric, Progress
from engine.results.checkpoints import BEST, FOLDER, read_manifest
from engine.results.clip import TrainRow
from engine.training import checkpoints, distributed, logs, precision, resuming, step
from engine.training.meter import Diverged, Meter
from engine.training.optimizers import assign
from engine.training.resuming import TrainingProgress
from engine.training.setup import Setup
from engine.training.step import StepResult, train_step
from engine.training.validation import Stopped, best_metric, best_score, params, row_fields, score, validate

log = logging.getLogger("engine.training")
LATEST = "latest.pt"
PROGRESS_S = 5
"""Seconds between two updates of the progress within an epoch. A cancelled run shows the last one."""
RECENT_S = 5
"""A checkpoint younger than these seconds is enough before a validation: with `overfit`, each step is an epoch."""


class Training:
    """One training in one process."""

    def __init__(
        self,
        setup: Setup,
        run_dir: Path,
        device_name: str,
        *,
        stopped: Callable[[], bool] = lambda: False,
        notes: Iterable[str] = (),
    ) -> None:
        self.setup, self._run_dir, self._device_name = setup, run_dir, device_name
        self.progress, self._saved_at, self._saved_time = TrainingProgress(), -1, -math.inf
        self._stopped, self._folder = stopped, run_dir / FOLDER
        self._meter = Meter(setup)
        self._files: logs.Files | None = None
        self._progress_event, self._updated_at = Progress(done=0, total=setup.plan.steps, note="beginning"), -math.inf
        self._notes = [*notes, *setup.made.notes]
        if setup.spec.precision == "fp32" and precision.tf32(setup.spec.device):
            self._notes.append(
                "fp32: matrix products and convolutions are computed in TF32, as open_clip's training does"
            )

    def run(self) -> Iterator[Event]:
        """Train from where the last attempt stopped, and yield events.

        If the generator is closed or `stopped` returns true, the training saves a checkpoint to resume from, and ends.
        """
        spec, plan = self.setup.spec, self.setup.plan
        self._run_dir.mkdir(parents=True, exist_ok=True)
        best_metric(self.setup)  # refuses a metric that is never measured
        yield from self._resume()
        if self.setup.place.first:
            self._files = logs.Files(self._run_dir, spec, params(self.setup), self.progress.step)
            for note in (*self.setup.pairs.notes, *self._notes):
                log.info("%s", note)
        try:
            if spec.val_at_start and not self.progress.step:
                yield from self._validate(self.progress)
            # All processes call `_stopping` in every iteration, because it is collective. Processes that do not
            # validate wait in it for the first one. A training that was stopped at its last step must still end the
            # last epoch.
            while not self._stopping() and (self.progress.step < plan.steps or self.progress.batch):
                yield from self._epoch()
            self._save_unless_saved()
        except GeneratorExit:  # not after other errors, which may leave half a step
            with suppress(Diverged):
                self._meter.read(self.progress)
                self._save_unless_saved()
            raise
        finally:
            if self._files:
                self._files.close()
        if self.setup.place.first:
            yield from self._final_events()

    def _resume(self) -> Iterator[Event]:
        """Load this run's newest checkpoint, or the one that the request names, and yield its rows and points."""
        found, origin, notes = resuming.find_checkpoint(self._run_dir, self.setup.spec.resume, self.setup.roots)
        self._notes += notes
        if found is None:
            if self.setup.place.first:  # an earlier attempt may have ended before its first checkpoint
                logs.clear(self._run_dir)
            return
        state, path = found
        roots = None if origin == self._run_dir else self.setup.roots
        manifest = read_manifest(path, roots)
        spec = manifest.get("spec")
        before = spec if isinstance(spec, dict) else {}
        changed = resuming.changes(self.setup.spec, path, before)
        resuming.check_pairs(self.setup, path, manifest.get("pairs"))
        self.progress, notes = resuming.restore(self.setup, state)
        changed += resuming.forget_best(self.progress, self.setup.spec, before, best_metric(self.setup))
        if origin != self._run_dir:
            resuming.check_left(self.progress, self.setup.plan.steps, self.setup.spec.patience, path)
        self._notes += [*notes, *changed, f"continued from {path.name} at step {self.progress.step}"]
        self._saved_at = self.progress.step if origin == self._run_dir else -1
        self._progress_event = self._progress_event.model_copy(update={"done": self.progress.step})
        if self.setup.place.first:
            reached = (self.progress.step, self.progress.epoch)
            validated = self.progress.batch == 0 or self.progress.validated == self.progress.step
            points = logs.carry(origin, self._run_dir, *reached, validated=validated, roots=roots)
            if origin != self._run_dir:  # last, because a later attempt continues from any checkpoint that is here
                self._save(LATEST)
                self._notes += resuming.carry_best(self.progress, path, self._folder, roots)
            for row in self.progress.rows:
                yield TrainRow.model_validate(row)
            yield from points
            yield self._progress_event

    def _epoch(self) -> Iterator[Event]:
        setup, plan, progress = self.setup, self.setup.plan, self.progress
        accumulate = setup.spec.accum_freq
        # agreeing on a stop then waits for the accelerator, and so empties its queue of work
        agreement_waits = setup.place.world_size > 1 and setup.place.device != "cpu"
        batches = setup.batches.of(progress.epoch, progress.batch)
        setup.network.train()
        if self._validates_now():  # the last attempt was stopped while it validated
            yield from self._validate(replace(self.progress))
            progress = self.progress
            if self._stopping():
                return
        while progress.batch < plan.batches and progress.step < plan.steps:
            begun = time.perf_counter()
            step.seed(setup.spec.seed, progress.step, setup.place.rank)
            inputs = [self._to_device(next(batches)) for _ in range(accumulate)]
            loaded = time.perf_counter()
            result = self._step(inputs)
            progress.step, progress.batch = progress.step + 1, progress.batch + accumulate
            progress.samples += plan.batch_size * setup.place.world_size * accumulate
            self._meter.add(progress, result, data_s=loaded - begun, seconds=time.perf_counter() - begun)
            saving = setup.spec.save_every_steps and progress.step % setup.spec.save_every_steps == 0
            logging_now, validating = self._logs_now(), self._validates_now()
            if saving or logging_now or validating:
                self._meter.read(self.progress)
            if logging_now:
                yield from self._log_step(result)
            if setup.place.first:
                yield self._current_progress()
            if saving:
                self._save(LATEST)
            if validating:
                yield from self._validate(replace(self.progress))
                progress = self.progress
            if (logging_now or validating or not agreement_waits) and self._stopping():
                self._meter.read(self.progress)
                return
        yield from self._validate(self.progress.fresh_epoch)

    def _logs_now(self) -> bool:
        """Return whether the current step gets a line in the log. All processes of a training return the same."""
        plan, progress, every = self.setup.plan, self.progress, self.setup.spec.log_every_n_steps
        epoch_step = progress.batch // self.setup.spec.accum_freq
        return (epoch_step - 1) % every == 0 or progress.batch == plan.batches or progress.step == plan.steps

    def _validates_now(self) -> bool:
        """Return whether to validate now, within an epoch. All processes return the same."""
        plan, progress, every = self.setup.plan, self.progress, self.setup.spec.val_every_steps
        within = 0 < progress.batch < plan.batches and progress.step < plan.steps
        return bool(every) and within and progress.step % every == 0 and progress.validated != progress.step

    def _to_device(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        images, tokens = batch
        return self.setup.reader.images(images), tokens.to(self.setup.place.device, non_blocking=True)

    def _step(self, inputs: list[tuple[torch.Tensor, torch.Tensor]]) -> StepResult:
        setup = self.setup
        assign(setup.optimizer, setup.lr(self.progress.step), setup.spec.lr_scales)
        return train_step(
            setup.network,
            inputs,
            setup.objective,
            setup.optimizer,
            autocast=setup.reader.autocast,
            scaler=setup.scaler,
            clip_norm=setup.spec.grad_clip_norm,
            no_sync=getattr(setup.network, "no_sync", nullcontext),
        )

    def _log_step(self, result: StepResult) -> Iterator[Event]:
        """Yield a point of every curve and write a line to the log. Times are means since the last line."""
        setup, plan, progress = self.setup, self.setup.plan, self.progress
        mean_losses = distributed.averaged(
            torch.stack([loss.detach().float() for loss in result.losses.values()]), setup.place
        )
        data_s, step_s = self._meter.mean_seconds()
        if not setup.place.first:
            return
        losses = dict(zip(result.losses, mean_losses.tolist(), strict=True))
        logit_scale = float(result.logit_scale)
        epoch_step = progress.batch // setup.spec.accum_freq
        per_step = plan.batch_size * setup.place.world_size * setup.spec.accum_freq
        lr = setup.lr(progress.step - 1)
        pairs, rate = len(setup.pairs.train), per_step / step_s
        losses_text = " ".join(
            f"{name.capitalize()}: {value:#.5g} ({progress.mean_loss(epoch_step, name):#.5g})"
            for name, value in losses.items()
        )
        log.info(  # the format of open_clip_train, so that scripts that read its logs can read ours
            f"Train Epoch: {progress.epoch} [{epoch_step * per_step:>{len(str(pairs))}}/{pairs} "
            f"({100 * epoch_step / plan.steps_per_epoch:.0f}%)] Data (t): {data_s:.3f} "
            f"Batch (t): {step_s:.3f}, {rate:#g}/s, {rate / setup.place.world_size:#g}/s/gpu LR: {lr:5f} "
            f"Logit Scale: {logit_scale:.3f} {losses_text}"
        )
        values = {
            **{f"train/{name}": value for name, value in losses.items()},
            "train/lr": lr,
            **{f"train/lr_{tower}": lr * scale for tower, scale in setup.spec.lr_scales.items()},
            "train/logit_scale": logit_scale,
            "train/grad_norm": float(result.grad_norm),
            "train/samples_per_s": rate,
            "train/data_s": data_s,
            "train/step_s": step_s,
        }
        if (memory := peak.so_far(setup.place.device)) is not None:
            values["train/memory_mb"] = memory
        yield from self._metrics(values)
        start_s = progress.rows[0]["seconds"] if progress.rows and progress.rows[0]["step"] == 0 else 0.0
        # includes validations, except the one before the first step
        left = (plan.steps - progress.step) * (progress.seconds - start_s) / progress.step
        note = f"epoch {progress.epoch + 1} of {plan.epochs}, loss {losses['loss']:.3f}, {rate:.0f} "
        self._progress_event = Progress(done=progress.step, total=plan.steps, note=f"{note}pairs/s", seconds_left=left)

    def _current_progress(self) -> Progress:
        """Return the progress. Between two lines of the log, it is updated at most every PROGRESS_S."""
        last, step, steps = self._progress_event, self.progress.step, self.setup.plan.steps
        if last.done < step and time.monotonic() - self._updated_at > PROGRESS_S:
            left = last.seconds_left and last.seconds_left * (steps - step) / (steps - last.done)
            self._progress_event = last.model_copy(update={"done": step, "seconds_left": left})
            self._updated_at = time.monotonic()
        return self._progress_event

    def _metrics(self, values: Mapping[str, float]) -> list[Metric]:
        """Return the points of the curves at this step, after writing them to TensorBoard and the history."""
        step = self.progress.step
        points = [Metric(step=step, name=name, value=value) for name, value in values.items() if math.isfinite(value)]
        assert self._files is not None
        self._files.metrics(points)
        return points

    def _validate(self, now: TrainingProgress) -> Iterator[Event]:
        """Validate the model, save a checkpoint and yield a row, in the first process. The others only go on.

        now: the progress after this validation. It becomes the training's progress, unless a stop interrupts the
        validation; then an epoch does not end, and the next attempt validates.
        """
        if not self.setup.place.first:
            self.progress = now
            now.validated = now.step
            return
        setup, plan, every = self.setup, self.setup.plan, self.setup.spec.save_frequency
        steps = self.progress.batch // setup.spec.accum_freq
        epoch_ended, last = bool(steps) and not now.batch, now.step >= plan.steps
        if time.monotonic() - self._saved_time > RECENT_S:
            self._save_unless_saved()  # a validation may take longer than a stop is allowed to
        begun = time.perf_counter()
        try:
            found = yield from validate(
                setup, now.epoch, self._progress_event, last=last or not epoch_ended, stopped=self._stopped
            )
        except Stopped:
            return
        if not found and not epoch_ended:
            return
        now.seconds += time.perf_counter() - begun
        now.validated = now.step
        loss = self.progress.mean_loss(steps) if steps else None
        share, disturbed = self._meter.neighbours()
        fields = row_fields(setup, self.progress, now, found) | {"train_loss": loss, "neighbour_share": share}
        row = TrainRow(**fields, device_name=self._device_name)
        # neither the initial weights nor the loss of a part of an epoch can be the best
        counts = bool(steps) and (epoch_ended or row.best_metric != "train_loss")
        value, before = score(row.best_metric, row) if counts else None, best_score(row.best_metric, self.progress.rows)
        best = value is not None and (before is None or value > before)
        if value is not None:
            now.stale = 0 if before is None or value[0] > before[0] else now.stale + 1
        if early := self._patience_ended(now):
            self._notes.append(resuming.note_on_early_stop(now, plan.steps, row.best_metric))
        keep = epoch_ended and (last or early or (every and now.epoch % every == 0))
        name = f"epoch_{now.epoch}.pt" if keep else LATEST
        checkpoint = f"{self._folder.name}/{name}" if steps else ""
        notes = (*setup.pairs.notes, *self._notes, *disturbed)
        row = row.model_copy(update={"best": best, "checkpoint": checkpoint, "notes": notes})
        now.rows = [*self.progress.rows, row.model_dump(mode="json")]
        self.progress = now
        metrics: list[Metric] = []
        if found:
            assert self._files is not None
            counted = {"epoch": now.epoch, "step": now.step, "num_samples": len(setup.pairs.val or ())}
            self._files.results({**found, **counted})
            metrics = self._metrics({f"val/{name}": value for name, value in found.items()})
        if steps:
            self._save(name)
            if best:
                self._save(BEST)
            checkpoints.prune(self._folder, setup.spec.keep_last, keep={BEST, LATEST, name})
        yield row
        yield from metrics

    def _patience_ended(self, now: TrainingProgress) -> bool:
        """Return whether the training stops early after this progress."""
        return 0 < self.setup.spec.patience <= now.stale

    def _stopping(self) -> bool:
        return distributed.agree(self._stopped() or self._patience_ended(self.progress), self.setup.place)

    def _save_unless_saved(self) -> None:
        if self.setup.place.first and self.progress.step and self._saved_at != self.progress.step:
            self._save(LATEST)

    def _save(self, name: str) -> None:
        if not self.setup.place.first:
            return
        setup, progress = self.setup, self.progress
        state = {
            "epoch": progress.epoch,
            "name": setup.spec.model,
            "state_dict": setup.model.state_dict(),
            "optimizer": setup.optimizer.state_dict(),
            "vitals": {"done": asdict(progress), "config": setup.made.config},
        }
        if setup.scaler is not None:
            state["scaler"] = setup.scaler.state_dict()
        about = {"epoch": progress.epoch, "step": progress.step, "spec": setup.spec.model_dump(mode="json")}
        about |= {"epochs": setup.plan.epochs, "best_metric": best_metric(setup), "pairs": setup.fingerprints}
        checkpoints.save(self._folder, name, state, about=about)
        self._saved_at, self._saved_time = progress.step, time.monotonic()

    def _final_events(self) -> Iterator[Event]:
        """Yield the checkpoints and log files as artifacts, then the final progress."""
        for path in sorted(self._folder.glob("*.pt")):
            yield Artifact(name=f"{self._folder.name}/{path.name}", kind="checkpoint")
        for name in (logs.PARAMS, logs.RESULTS, logs.HISTORY):
            if (self._run_dir / name).is_file():
                yield Artifact(name=name, kind="log")
        total = self.progress.step if self._patience_ended(self.progress) else self.setup.plan.steps
        yield Progress(done=self.progress.step, total=total)
