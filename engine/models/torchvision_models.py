"""Build torchvision's ResNets."""

import torch
import torchvision

from engine.models.built import Built, Wanted, images

NATIVE_SIZE = (224, 224)
FAMILY = "resnet"


def families() -> dict[str, str]:
    """Return torchvision's ResNets, ResNeXts and wide ResNets by name."""
    names = torchvision.models.list_models(torchvision.models, include=["resnet*", "resnext*", "wide_resnet*"])
    return dict.fromkeys(names, FAMILY)


def build(name: str, wanted: Wanted) -> Built:
    """Return a torchvision model. It takes images of any size that its strides do not reduce below one pixel."""
    with torch.device(wanted.device):
        model = torchvision.models.get_model(name, weights=None)
    size = wanted.image_size or NATIVE_SIZE
    return Built(
        model=model.to(wanted.dtype).eval(),
        inputs=(images(wanted, size),),
        towers={"image": ""},
        family=FAMILY,
        image_size=size,
        native_size=NATIVE_SIZE,
        image_width=int(model.fc.in_features),
    )
