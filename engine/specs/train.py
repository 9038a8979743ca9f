"""The request of a training of CLIP, and its schedule of steps."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine.specs.base import CLUSTER, RealDevice, Spec, matching
from engine.specs.fields import images
from engine.specs.fields.clip import (
    SAME_PAIRS,
    WARMUP,
    ClipFields,
    Pretrained,
    Sources,
    TrainPrecision,
    registered,
    short_name,
    split_sources,
    unused_of_data,
)
from engine.specs.fields.timed import Threads
from engine.words import plural

SCRATCH_LR, FINE_TUNE_LR = 1e-3, 1e-5
EPOCHS = 15

Optimizer = Annotated[
    str,
    matching(r"adamw|timm/[a-z0-9_]{1,40}", "adamw or an optimizer of timm such as timm/lion"),
    Field(description="adamw, or timm/NAME."),
]
METRICS = (
    *("zeroshot_top1", "zeroshot_top5", "clip_val_loss", "val_generative_loss", "train_loss"),
    *(f"{way}_{rank}" for way in ("image_to_text", "text_to_image") for rank in ("mean_rank", "median_rank")),
    *(f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)),
)
"""Metrics that can select the best checkpoint. A training measures those that its data and loss allow."""
Share = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float | None, Field(gt=0, le=100)]
Count = Annotated[int, Field(ge=0, le=100_000)]
Steps = Annotated[int, Field(ge=0, le=100_000_000)]


class TrainSpec(images.ImageFields, ClipFields, Spec):
    """Train or fine-tune CLIP for a short while, on images with captions."""

    kind: ClassVar[str] = "train"
    attempts: ClassVar[int] = 3
    continues: ClassVar[bool] = True
    paced_by: ClassVar[tuple[str, ...]] = (
        *("model", "data", "samples", "batch_size", "accum_freq", "nproc", "precision", "device", "image_size", "loss"),
        *("grad_checkpointing", "compile", "use_bn_sync", "val_frequency", "val_every_steps", "zeroshot_data"),
        *("workers", "threads", "lock_image", "lock_text", "patch_dropout", "context_length", "zeroshot_frequency"),
    )
    meaning: ClassVar[tuple[str, ...]] = (
        *(*SAME_PAIRS, "val_data", "zeroshot_data", "loss", "batch_size", "accum_freq", "nproc", "overfit"),
        *("threads", "seed"),
    )
    needs: ClassVar[tuple[str, ...]] = (
        *("model", "configs", "pretrained", "pretrained_image", "pretrained_text"),
        *("image_size", "context_length", "patch_dropout"),
        *("lock_image", "lock_image_unlocked_groups", "lock_image_freeze_bn_stats"),
        *("lock_text", "lock_text_unlocked_layers", "lock_text_freeze_layer_norm"),
        *("loss", "distill_model", "distill_pretrained", "grad_checkpointing", "channels_last"),
        *("accum_freq", "nproc", "device", "precision", "use_bn_sync"),
        *("opt", "eps", "beta1", "beta2", "momentum"),
    )

    data_weights: images.NUMBERS = Field(
        (),
        description="Weight of each source, relative to its size, if several are joined by ::. Default: 1 each. With "
        "different weights, pairs are drawn with replacement.",
    )
    resampled: bool = Field(False, description="Draw pairs with replacement. An epoch has as many pairs as the data.")
    val_data: Sources = Field("", description="Data of the held-out pairs. Default: a share of the data.")
    val_fraction: Share = Field(0.2, description="Share of the data to hold out, unless held-out data are given.")
    zeroshot_data: Sources = Field(
        "",
        description="Labelled data for zero-shot: class folders, shards with classnames.txt, or a CSV with a class "
        "column. Default: the held-out pairs, if they have classes.",
    )

    pretrained: Pretrained = ""
    pretrained_image: bool = Field(
        False, description="Initialise the image tower with timm's weights. Needs a timm tower."
    )
    pretrained_text: bool = Field(
        False, description="Initialise the text tower with its Hugging Face weights. Needs a Hugging Face tower."
    )
    patch_dropout: Share = Field(0, description="Share of image patches left out in training.")
    lock_image: bool = Field(False, description="Do not train the image tower.")
    lock_image_unlocked_groups: int = Field(
        0, ge=0, le=1000, description="Last groups of layers of a locked image tower to train."
    )
    lock_image_freeze_bn_stats: bool = Field(False, description="Freeze the batch norm statistics of a locked tower.")
    lock_text: bool = Field(False, description="Do not train the text tower, except its layer norms.")
    lock_text_unlocked_layers: int = Field(0, ge=0, le=1000, description="Last layers of a locked text tower to train.")
    lock_text_freeze_layer_norm: bool = Field(False, description="Freeze the layer norms of a locked text tower too.")
    grad_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    channels_last: bool = Field(False, description="Use channels_last memory format.")
    compile: bool = Field(False, description="Compile the model with torch.compile.")
    use_bn_sync: bool = Field(False, description="Compute batch norm over all processes (SyncBatchNorm).")

    loss: Literal["clip", "siglip", "coca", "distill"] = Field("clip", description="Loss to minimise.")
    coca_contrastive_weight: float = Field(1.0, ge=0, le=1000, description="Weight of the contrastive loss.")
    coca_caption_weight: float = Field(2.0, ge=0, le=1000, description="Weight of the caption loss.")
    distill_model: str = Field(
        "", max_length=200, description="Teacher of the loss distill: a model as in the field model."
    )
    distill_pretrained: Pretrained = ""
    local_loss: bool = Field(False, description="Each process contrasts only its own features with all others.")
    gather_with_grad: bool = Field(
        True, description="Pass gradients through the features of other processes, as if one process had all pairs."
    )

    opt: Optimizer = "adamw"
    lr: Rate = Field(
        None, description="Peak learning rate. Default: 0.001, with initial weights of both towers 0.00001."
    )
    lr_image: Rate = Field(None, description="Peak learning rate of the image tower. Default: the learning rate.")
    lr_text: Rate = Field(
        None, description="Peak learning rate of the text tower, with CoCa's decoder. Default: the learning rate."
    )
    wd: float = Field(0.2, ge=0, le=100, description="Weight decay; not applied to gains and biases.")
    beta1: Share | None = Field(
        None, description="First momentum coefficient. Default: the optimizer's own; 0.9 for adamw."
    )
    beta2: Share | None = Field(
        None,
        description="Second momentum coefficient. Default: the optimizer's own; 0.98 for adamw, or 0.999 with a "
        "convolutional image tower.",
    )
    eps: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Epsilon. Default: the optimizer's own; 1e-6 for adamw, or 1e-8 with a convolutional image tower.",
    )
    momentum: Share | None = Field(
        None, description="Momentum of timm's optimizers. Default: the optimizer's own; mostly 0.9."
    )
    grad_clip_norm: float | None = Field(None, gt=0, description="Clip gradients to this norm. Default: no clipping.")

    epochs: int | None = Field(None, ge=1, le=100_000, description="Passes over the data. Default: 15.")
    steps: int | None = Field(
        None, ge=1, le=100_000_000, description="Optimizer steps instead of epochs. Default: from the epochs."
    )
    batch_size: int | None = Field(
        None,
        ge=2,
        le=65_536,
        description="Pairs per process and forward pass. Default: from the data; at most 256.",
    )
    accum_freq: int = Field(1, ge=1, le=1024, description="Batches per optimizer step, combined in one loss.")
    warmup: WARMUP = Field("10%", description="Warm-up steps of the learning rate: N, or S%.")
    lr_scheduler: Literal["cosine", "const", "const-cooldown"] = Field(
        "cosine", description="Learning rate after warm-up."
    )
    epochs_cooldown: int | None = Field(
        None, ge=1, le=100_000, description="Cooldown epochs of const-cooldown, which needs them. Default: none."
    )
    lr_cooldown_power: float = Field(1.0, gt=0, le=10, description="Exponent of the cooldown; 1: linear.")
    lr_cooldown_end: float = Field(0.0, ge=0, le=100, description="Learning rate at the end of the cooldown.")
    overfit: bool = Field(False, description="Train on one batch only, as a check: the loss must fall.")

    device: RealDevice = Field("cpu", description="Device to train on: cpu, cuda, cuda:0, mps, ...")
    precision: TrainPrecision = Field(
        "auto",
        description="auto: amp_bf16 on a GPU that has bf16, else fp32. Mixed: amp_bf16; amp, which is float16 on CUDA "
        "and else the same. Half: bf16, fp16.",
    )
    nproc: int = Field(
        1,
        ge=1,
        le=64,
        description="Training processes. Each has the full batch size. "
        "On a cluster, each takes a GPU, or a node with cluster:cpu.",
    )
    workers: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Processes that load images; 0: the training process loads them. Default: as many as CPUs allow.",
    )
    threads: Threads = None
    seed: int = Field(0, ge=0, lt=2**31, description="Random seed of weights, order and crops.")

    val_frequency: Count = Field(1, description="Epochs between validations; 0: never.")
    zeroshot_frequency: Count = Field(1, description="Epochs between zero-shot tests; 0: never.")
    val_at_start: bool = Field(True, description="Also validate the initial weights, as epoch 0, to show the gain.")
    val_every_steps: Steps = Field(0, description="Also validate every N steps, with a row each; 0: only after epochs.")
    patience: Count = Field(
        0, description="Stop early after this many validations in a row without a new best; 0: never."
    )
    log_every_n_steps: int = Field(10, ge=1, le=1_000_000, description="Steps between log lines.")
    save_frequency: Count = Field(1, description="Epochs between checkpoints; 0: only the last.")
    save_every_steps: Steps = Field(0, description="Steps between checkpoints to resume from.")
    keep_last: Count = Field(1, description="Checkpoints to keep besides the best; 0: all.")
    best_metric: str = Field(
        "",
        max_length=100,
        description="Metric that selects the best checkpoint, such as clip_val_loss. Default: from the data; zero-shot "
        "accuracy if it is measured, else recall at 1 or a loss.",
    )
    tensorboard: bool = Field(True, description="Write TensorBoard files.")
    wandb: bool = Field(False, description="Log to Weights & Biases; WANDB_MODE=offline works.")
    wandb_project_name: str = Field("model-vitals", min_length=1, max_length=128, description="Project at W&B.")
    wandb_name: str = Field("", max_length=128, description="Name of the run at W&B. Default: chosen by W&B.")
    wandb_notes: str = Field("", max_length=4000, description="Notes on the run at W&B.")
    resume: str = Field("", max_length=1000, description="Checkpoint or run folder to continue from, exactly.")

    def model_post_init(self, _context: Any) -> None:
        images.check(self)
        if self.nproc > 1 and self.device.startswith("mps"):
            raise ValueError(f"there is one mps device, for one process: {self.nproc} were asked for")
        if self.nproc > 1 and self.device != self.devices[0]:
            raise ValueError(
                f"{self.nproc} processes take {self.devices[0]} to {self.devices[-1]}, so the device is "
                f"{self.devices[0]}, not {self.device}"
            )
        if self.pretrained and (self.pretrained_image or self.pretrained_text):
            raise ValueError(
                f"pretrained {self.pretrained!r} has the weights of both towers: leave it out, or leave out "
                "pretrained_image and pretrained_text"
            )
        if self.use_bn_sync and self.nproc == 1:
            raise ValueError("use_bn_sync needs several processes: set nproc above 1, or leave use_bn_sync out")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        if any(weight <= 0 for weight in self.data_weights):
            raise ValueError("the weights of sources are positive numbers")
        if self.data_weights and len(self.data_weights) != len(split_sources(self.data)):
            sources = plural(len(split_sources(self.data)), "source")
            raise ValueError(f"{plural(len(self.data_weights), 'weight')} for {sources}: give one each")
        if self.local_loss and not self.gather_with_grad:
            raise ValueError("local_loss without gather_with_grad has only a part of the gradients: use both")
        if self.lr_scheduler == "const-cooldown" and self.epochs_cooldown is None:
            raise ValueError(
                "const-cooldown needs epochs_cooldown, the number of epochs in which the learning rate falls"
            )
        if self.loss == "distill" and not self.distill_model:
            raise ValueError("distillation needs a teacher: give distill_model and distill_pretrained")
        if self.loss == "coca" and self.accum_freq > 1:
            raise ValueError("CoCa's caption loss needs more than the cached features of batches: accum_freq must be 1")
        unlocked = {
            "image": self.lock_image_unlocked_groups,
            "text": self.lock_text_unlocked_layers or not self.lock_text_freeze_layer_norm,
        }
        for tower, rate in (("image", self.lr_image), ("text", self.lr_text)):
            if rate is not None and getattr(self, f"lock_{tower}") and not unlocked[tower]:
                raise ValueError(
                    f"lr_{tower} is {rate:g} and the {tower} tower is locked: leave lock_{tower} or lr_{tower} out"
                )
        if (self.beta1 is None) != (self.beta2 is None) and self.opt != "adamw":
            raise ValueError("timm's optimizers take both betas or none")

    @property
    def unused(self) -> dict[str, str]:
        scheduler, cooldown = self.lr_scheduler, "epochs_cooldown lr_cooldown_power lr_cooldown_end"
        conditions = [
            (self.opt != "adamw", "momentum", "adamw has beta1 and beta2 instead"),
            (scheduler == "const-cooldown", cooldown, f"the scheduler is {scheduler}, not const-cooldown"),
            (self.lock_image, "lock_image_unlocked_groups lock_image_freeze_bn_stats", "the image tower is not locked"),
            (self.lock_text, "lock_text_unlocked_layers lock_text_freeze_layer_norm", "the text tower is not locked"),
            (self.loss == "coca", "coca_contrastive_weight coca_caption_weight", f"the loss is {self.loss}, not coca"),
            (self.loss == "distill", "distill_model distill_pretrained", f"the loss is {self.loss}, not distill"),
            (len(split_sources(self.data)) > 1, "data_weights", "the data have only one source"),
            (self.nproc > 1, "local_loss gather_with_grad", "there is only one process"),
            (self.aug_re_prob > 0, "aug_re_count", "the probability of erasing is 0"),
            (not self.val_data, "val_fraction", "the held-out pairs have data of their own"),
            (self.wandb, "wandb_project_name wandb_name wandb_notes", "wandb is off"),
        ]
        reasons = {name: reason for used, names, reason in conditions if not used for name in names.split()}
        return reasons | unused_of_data(self.data, self.val_data, self.zeroshot_data)

    @property
    def refusal(self) -> str:
        if self.best_metric in ("", *METRICS):
            return ""
        return f"best_metric {self.best_metric!r} is no metric of a training. Use one of {', '.join(METRICS)}"

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that the catalogue must have."""
        return registered(self.model, self.distill_model)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that the run must hold: the first `nproc` of an accelerator, or any of the cluster's."""
        if self.device.startswith(CLUSTER):
            return (self.device,) * self.nproc
        kind, _, _number = self.device.partition(":")
        if self.nproc == 1 or kind == "cpu":
            return super().devices
        return tuple(f"{kind}:{rank}" for rank in range(self.nproc))

    @property
    def pairs_class_key(self) -> str:
        """Return the class column of the training pairs; empty if csv_class_key is a column of zeroshot_data."""
        return "" if self.zeroshot_data else self.csv_class_key

    @property
    def begins_with(self) -> str:
        """Return the weights that the training begins with, such as `pretrained image tower`; empty for random ones."""
        towers = [part for part in ("image", "text") if getattr(self, f"pretrained_{part}")]
        return self.pretrained or self.resume or " and ".join(f"pretrained {part} tower" for part in towers)

    @property
    def teacher(self) -> "TrainSpec":
        """Return the request for the model of the loss distill."""
        fields = {"model": self.distill_model, "pretrained": self.distill_pretrained}
        return self.model_copy(update={**fields, "pretrained_image": False, "pretrained_text": False})

    @property
    def peak_lr(self) -> float:
        """Return the learning rate at the end of the warm-up."""
        return self.lr or (FINE_TUNE_LR if self.pretrained else SCRATCH_LR)

    @property
    def lr_scales(self) -> dict[str, float]:
        """Return the factor of the learning rate by tower; empty if all parameters have the same rate.

        It multiplies the whole schedule, also the end of a cooldown.
        """
        rates = {"image": self.lr_image, "text": self.lr_text}
        return {tower: rate / self.peak_lr for tower, rate in rates.items() if rate is not None}

    @property
    def resolved(self) -> dict[str, Any]:
        return {"lr": self.peak_lr} | ({"epochs": self.epochs or EPOCHS} if self.steps is None else {})

    @property
    def summary(self) -> str:
        start = f" from {short_name(self.pretrained)}" if self.pretrained else ""
        settings = [f"lr {self.lr:g}"] if self.lr else []
        settings += [f"batch {self.batch_size:,}"] if self.batch_size else []
        settings += [plural(count, what) for count, what in ((self.epochs, "epoch"), (self.steps, "step")) if count]
        return f"{', '.join([f'{self.model}{start} on {short_name(self.data)}', *settings])} ({self.device})"
