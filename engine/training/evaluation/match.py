"""Compare one image with texts: which of them fits best."""

from io import BytesIO

import torch

from engine.datasets import Unreadable, images
from engine.results.answers import MatchedText, Matches
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.questions import Match
from engine.training.evaluation.encode import Reader, directions, encode_images, encode_texts
from engine.training.evaluation.search import BATCH, kept_model


@torch.no_grad()
def answer(question: Match) -> Matches:
    """Return the cosine of the image with each text, and its probability, the most similar text first.

    Probabilities are those of the model's own loss: softmax(scale * cosine) over the texts, or, for a model with a bias
    (SigLIP), sigmoid(scale * cosine + bias).
    Errors: Refused when the image cannot be read; those of building the model.
    """
    try:
        image = images.decode(lambda: BytesIO(question.image), "the picture")
    except Unreadable as unreadable:
        raise Refused(str(unreadable)) from unreadable
    made = kept_model(question.spec, Settings().roots)
    reader = Reader(made, "fp32", "cpu", BATCH)
    features = encode_images(made.preprocess_val(image)[None], reader)
    if question.templates:
        weights = directions(question.texts, question.templates, reader)
    else:
        weights = encode_texts(question.texts, reader).T
    cosines = (features @ weights)[0].double()
    logits = cosines * float(made.model.logit_scale.exp())  # type: ignore[operator]
    bias = getattr(made.model, "logit_bias", None)
    shares = torch.softmax(logits, 0) if bias is None else torch.sigmoid(logits + float(bias))
    order = torch.argsort(cosines, descending=True, stable=True).tolist()
    return Matches(
        texts=tuple(
            MatchedText(text=question.texts[index], similarity=float(cosines[index]), probability=float(shares[index]))
            for index in order
        )
    )
