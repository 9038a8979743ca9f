"""Fields for the images of a training: normalisation, resizing, and augmentation as in open_clip and timm."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from engine.specs.base import matching
from engine.specs.fields.timed import split_words

# A named alias, because its name is what `--help` shows.
NUMBERS = TypeAliasType("NUMBERS", Annotated[tuple[float, ...], split_words])
Policy = Annotated[
    str,
    matching(
        r"|(rand|augmix|original|originalr|v0|v0r|3a)(-[a-z]+[0-9.]+)*",
        "a policy of timm, such as rand-m9-mstd0.5-inc1, augmix-m5-w4, original-mstd0.5 or 3a",
    ),
]


class ImageFields(BaseModel):
    """The fields of a training for its images. Names and defaults are those of open_clip's `--image-*`, `--aug-cfg`."""

    image_mean: NUMBERS = Field((), description="Mean of red, green and blue. Default: from the weights.")
    image_std: NUMBERS = Field((), description="Standard deviation of red, green and blue. Default: from the weights.")
    image_interpolation: Literal["auto", "bicubic", "bilinear", "random"] = Field(
        "auto",
        description="Interpolation of held-out images and of timm's crops; open_clip's crops are bicubic. "
        "auto: from the weights.",
    )
    image_resize_mode: Literal["auto", "shortest", "longest", "squash"] = Field(
        "auto",
        description="Resizing of held-out images: by the shortest side, then crop; by the longest side, then pad; or "
        "squash. auto: from the weights.",
    )
    aug_scale: NUMBERS = Field(
        (), description="Smallest and largest share of the image in a random crop. Default: 0.9 and 1."
    )
    aug_color_jitter: NUMBERS = Field(
        (),
        description="Jitter of brightness, contrast, saturation and hue: 4 numbers. With timm also 1 or 3 numbers. "
        "Default: none.",
    )
    aug_color_jitter_prob: float = Field(
        0, ge=0, le=1, description="Probability of the jitter. With timm it is always on."
    )
    aug_gray_scale_prob: float = Field(0, ge=0, le=1, description="Probability that an image becomes grey.")
    aug_use_timm: bool = Field(False, description="Augment with timm, which has more methods.")
    aug_ratio: NUMBERS = Field(
        (), description="Smallest and largest aspect ratio (width / height) of timm's crops. Default: 3/4 and 4/3."
    )
    aug_auto_augment: Policy = Field(
        "",
        max_length=100,
        description="timm's RandAugment, AugMix or AutoAugment, such as rand-m9-mstd0.5-inc1. Default: none.",
    )
    aug_re_prob: float = Field(0, ge=0, le=1, description="Probability that timm erases a part of the image.")
    aug_re_count: int = Field(1, ge=1, le=100, description="Maximum number of parts that timm erases per image.")


def check(spec: ImageFields) -> None:
    """Check that the fields fit together. Errors: ValueError."""
    for name, least in (("image_mean", 0.0), ("image_std", 1e-6)):
        values = getattr(spec, name)
        if values and (len(values) != 3 or not all(least <= value <= 1 for value in values)):
            raise ValueError(f"{name} is {values}: give 3 numbers from {least:g} to 1, for red, green and blue")
    for name, most in (("aug_scale", 1.0), ("aug_ratio", 100.0)):
        values = getattr(spec, name)
        if values and not (len(values) == 2 and 0 < values[0] <= values[1] <= most):
            raise ValueError(f"{name} is {values}: give 2 numbers from 0 to {most:g}, the smaller one first")
    of_timm = ("aug_ratio", "aug_auto_augment", "aug_re_prob")
    if not spec.aug_use_timm and (needing_timm := [name for name in of_timm if getattr(spec, name)]):
        raise ValueError(f"{', '.join(needing_timm)}: only timm has this. Set aug_use_timm too")
    if not spec.aug_use_timm and spec.image_interpolation == "random":
        raise ValueError("only timm's crops have the interpolation random: set aug_use_timm too")
    _check_colours(spec)


def _check_colours(spec: ImageFields) -> None:
    jitter, probability = spec.aug_color_jitter, spec.aug_color_jitter_prob
    if not all(0 <= value < 100 for value in jitter) or (len(jitter) == 4 and jitter[3] > 0.5):
        raise ValueError(f"aug_color_jitter is {jitter}: give numbers from 0 to 100, the fourth one at most 0.5")
    if spec.aug_use_timm:
        if probability or spec.aug_gray_scale_prob:
            raise ValueError("aug_color_jitter_prob and aug_gray_scale_prob do not work with aug_use_timm: set 0")
        if len(jitter) not in (0, 1, 3, 4):
            raise ValueError(f"aug_color_jitter has {len(jitter)} numbers: timm takes 1, 3 or 4")
        if jitter and spec.aug_auto_augment:
            raise ValueError("timm ignores aug_color_jitter when aug_auto_augment is set: give one of them")
    elif bool(jitter) != bool(probability) or len(jitter) not in (0, 4):
        raise ValueError("colour jitter needs 4 numbers in aug_color_jitter and aug_color_jitter_prob above 0")


def preprocessing(spec: ImageFields) -> dict[str, Any]:
    """Return the parts of open_clip's PreprocessCfg that the spec sets."""
    values = {name: getattr(spec, f"image_{name}") for name in ("mean", "std", "interpolation", "resize_mode")}
    return {name: value for name, value in values.items() if value not in ((), "auto")}


def augmentation(spec: ImageFields) -> dict[str, Any]:
    """Return open_clip's AugmentationCfg as a dict, without auto_augment, which only timm has."""
    jitter = spec.aug_color_jitter
    values = {
        "scale": spec.aug_scale or (0.9, 1.0),  # open_clip's default
        "ratio": spec.aug_ratio,
        "color_jitter": jitter[0] if len(jitter) == 1 else jitter,
        "color_jitter_prob": spec.aug_color_jitter_prob,
        "gray_scale_prob": spec.aug_gray_scale_prob,
        "use_timm": spec.aug_use_timm,
        "re_prob": spec.aug_re_prob,
        "re_count": spec.aug_re_count if spec.aug_re_prob else 0,
    }
    return {name: value for name, value in values.items() if value}
