"""Check files, tokenizer and memory that a training or an evaluation needs."""

from engine.report.checks.training import Check
from engine.report.style import digits
from engine.results.answers import Needed, Prospect
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec


def checks(prospect: Prospect, spec: TrainSpec | EvaluateSpec, device_gb: float | None) -> list[Check]:
    """Return problems first, then files, then memory. device_gb: memory of the device, in 1e9 bytes."""
    problems = [Check("error", problem) for problem in prospect.problems]
    memory = [_memory(prospect, spec, device_gb)] if prospect.peak_mb is not None else []
    return [*problems, *_files(prospect), *memory]


def unknown(spec: TrainSpec | EvaluateSpec, why: str) -> Check:
    """Return the check for needs that could not be determined. Only a warning, because the run may still work."""
    return Check("warning", f"The files and memory for {spec.model} could not be determined: {why}.")


def _files(prospect: Prospect) -> list[Check]:
    to_fetch = [needed for needed in prospect.needed if needed.address]
    room = prospect.free_mb - sum(needed.mb or 0 for needed in to_fetch)
    return [_file(needed, prospect, enough=room > 0) for needed in prospect.needed]


def _file(needed: Needed, prospect: Prospect, *, enough: bool) -> Check:
    what = _sentence(needed.what)
    if not needed.address:
        return Check("ok", f"{what}." if str(needed.path) in what else f"{what}: {needed.path}.")
    size = f" ({_size(needed.mb)})" if needed.mb else ""
    text = f"{what}: to be downloaded from {needed.address}{size} into {prospect.cache}"
    if enough:
        return Check("ok", f"{text}, where {_size(prospect.free_mb)} are free.")
    return Check("error", f"{text}, where only {_size(prospect.free_mb)} are free. Make room, or set HF_HUB_CACHE.")


def _memory(prospect: Prospect, spec: TrainSpec | EvaluateSpec, device_gb: float | None) -> Check:
    """Return the check of memory: an error if the state does not fit, a warning if the peak exceeds free memory."""
    assert prospect.peak_mb is not None
    assert prospect.state_mb is not None
    training = isinstance(spec, TrainSpec)
    # processes on a CPU share its memory; on accelerators each has its own
    sharing = spec.nproc if isinstance(spec, TrainSpec) and spec.device == "cpu" else 1
    peak, held = (sharing * mb / 1e3 for mb in (prospect.peak_mb, prospect.state_mb))
    what = "weights, gradients and optimizer" if training else "weights"
    text = f"Memory: about {digits(peak)} GB, {digits(held)} GB of which for {what}, the rest for a batch"
    text += f"; {sharing} processes together." if sharing > 1 else "."
    if device_gb is None:
        return Check("ok", text)
    free_gb = device_gb if prospect.unused_mb is None else prospect.unused_mb / 1e3
    text += f" There are {digits(device_gb)} GB"
    text += "." if prospect.unused_mb is None else f", {digits(free_gb)} GB of them free now."
    if held > device_gb:
        return Check("error", text)
    if peak > free_gb:
        less = "a smaller batch, or checkpoint activations" if training else "a smaller batch"
        return Check("warning", f"{text} Take {less}.")
    return Check("ok", text)


def _size(mb: float) -> str:
    return f"{digits(mb / 1e3)} GB" if mb >= 1000 else f"{digits(mb)} MB"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")
