"""Labels and placeholders of the fields of all specs."""

from engine.specs import Spec
from engine.specs.benchmark import CHECKED_BATCH, SEARCH_END, SWEEP_END
from engine.specs.timed import LEAST_SAMPLES, LEAST_SECONDS, QUOTABLE
from engine.specs.train import EPOCHS

LABELS = {
    "image_size": "Image size (px)",
    "training": "Training peak",
    "detail": "Table of modules",
    "replicates": "Processes",
    "min_seconds": "Sampled time (s)",
    "min_samples": "Samples",
    "time_limit": "Time limit (s)",
    "max_batch_size": "Largest batch size",
    "publishable": "5 processes",
    "filter": "Only names containing",
    "exclude": "Exclude names containing",
    "exclude_exact": "Exclude models",
    "partition": "Part (I/N)",
    "cudnn_benchmark": "cuDNN benchmark",
    "num_classes": "Classes",
    "in_chans": "Channels",
    "model_kwargs": "Keywords",
    "context_length": "Text length (tokens)",
    "dtypes": "Data types",
    "seconds": "Sampled time (s)",
    "runners": "More runners",
    "seq_length": "Time steps",
    "num_layers": "Layers",
    "proj_size": "Projection size",
    "loops": "Samples",
    "warmup": "Warm-up calls",
    "sweep_values": "Sweep values",
    "data_kind": "Data format",
    "csv_separator": "CSV separator",
    "csv_img_key": "CSV image column",
    "csv_caption_key": "CSV caption column",
    "train.samples": "Maximum pairs",
    "evaluate.samples": "Maximum pairs",
    "data_weights": "Source weights",
    "resampled": "Draw with replacement",
    "val_data": "Held-out data",
    "val_fraction": "Held-out share",
    "held_out": "Held-out share only",
    "pretrained": "Initial weights",
    "lr": "Learning rate",
    "train.warmup": "Warm-up",
    "lr_image": "Image tower",
    "lr_text": "Text tower",
    "wd": "Weight decay",
    "eps": "Epsilon",
    "opt": "Optimizer",
    "grad_clip_norm": "Gradient clipping norm",
    "accum_freq": "Batches per step",
    "lr_scheduler": "Schedule",
    "epochs_cooldown": "Cooldown epochs",
    "lr_cooldown_power": "Cooldown power",
    "lr_cooldown_end": "Final learning rate",
    "overfit": "Overfit one batch",
    "patch_dropout": "Patch dropout",
    "lock_image_unlocked_groups": "Unlocked last groups",
    "lock_image_freeze_bn_stats": "Freeze batch norms",
    "lock_text_unlocked_layers": "Unlocked last layers",
    "lock_text_freeze_layer_norm": "Freeze layer norms",
    "grad_checkpointing": "Checkpoint activations",
    "compile": "torch.compile",
    "coca_contrastive_weight": "CoCa contrastive weight",
    "coca_caption_weight": "CoCa caption weight",
    "distill_model": "Teacher",
    "distill_pretrained": "Teacher weights",
    "gather_with_grad": "Gather with gradients",
    "nproc": "Processes",
    "workers": "Loader processes",
    "val_frequency": "Validate every (epochs)",
    "zeroshot_frequency": "Zero-shot every (epochs)",
    "val_every_steps": "Validate every (steps)",
    "val_at_start": "Validate at start",
    "patience": "Patience (validations)",
    "log_every_n_steps": "Log every (steps)",
    "save_frequency": "Save every (epochs)",
    "save_every_steps": "Save every (steps)",
    "keep_last": "Checkpoints kept",
    "best_metric": "Best checkpoint by",
    "tensorboard": "TensorBoard files",
    "wandb": "Weights & Biases",
    "resume": "Resume from",
    "cuda_pointwise_loop_level": "CUDA pointwise loops",
    "cuda_pointwise_block_count": "CUDA pointwise blocks",
    "cuda_pointwise_block_size": "CUDA pointwise block size",
}
DEFAULTS = {
    "workers": "as many as the CPUs allow",
    "image_size": "the model's own",
    "context_length": "the model's own",
    "max_batch_size": f"{SWEEP_END} (sweep), {SEARCH_END:,} (max)",
    "replicates": str(QUOTABLE),
    "min_samples": str(LEAST_SAMPLES),
    "num_classes": "the model's own",
    "in_chans": "the model's own",
    "min_seconds": f"{LEAST_SECONDS:g}",
    "threads": "all available",
    "baseline": "the first that runs",
    "sweep_values": "¼, ½, 1 and 2 times the size",
    "cuda_pointwise_loop_level": "set by PyTorch",
    "cuda_pointwise_block_count": "set by PyTorch",
    "cuda_pointwise_block_size": "set by PyTorch",
    "samples": "all",
    "data_weights": "1 each",
    "beta1": "0.9",
    "beta2": "0.98 or 0.999",
    "eps": "1e-6 or 1e-8",
    "momentum": "the optimizer's own",
    "grad_clip_norm": "no clipping",
    "epochs": str(EPOCHS),
    "steps": "from the epochs",
    "batch_size": "from the data",
    "benchmark.batch_size": f"1, and {CHECKED_BATCH} to compare training",
    "tolerance": "that of PyTorch's benchmark",
    "lr": "from the weights",
    "lr_image": "the learning rate",
    "lr_text": "the learning rate",
    "epochs_cooldown": "none",
}
"""Effective value of an empty field, by name. The placeholder shows it as `default: ...`."""


def name_in_sentence(spec: type[Spec], name: str) -> str:
    """Return the name of a field for use inside a sentence."""
    return LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ")))


def heading(spec: type[Spec], name: str) -> str:
    """Return the label of a field, also for the beginning of a sentence."""
    return LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ").capitalize()))


def default_hint(spec: type[Spec], name: str) -> str | None:
    """Return the placeholder that states the default of an empty field; None for a field without one in DEFAULTS."""
    default = DEFAULTS.get(f"{spec.kind}.{name}", DEFAULTS.get(name))
    return f"default: {default}" if default else None
