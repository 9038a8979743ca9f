"""Zero-shot classification and linear probes against open_clip's functions and scikit-learn's metrics."""

import copy
from collections.abc import Iterator
from math import isnan
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, confusion_matrix, recall_score, top_k_accuracy_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from engine.results import Progress
from engine.specs import Refused
from engine.training.evaluation import classification
from engine.training.evaluation.classification import Classification, judged
from engine.training.evaluation.encode import Reader, check_finite, directions, encode_images


def probe(*arguments: Any, **options: Any) -> Classification:
    """Fit and judge a linear probe with seed 0."""
    return value_of(classification.probe(*arguments, 0, event, **options))


def event(note: str) -> Progress:
    return Progress(done=0, note=note)


def value_of(work: Iterator[object]) -> Any:
    """Run a generator to its end, and return its value."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


CLASSES = ("cat", "dog", "a {strange} one", "sea", "hill", "sun", "moon")


def reader(model: nn.Module, batch_size: int) -> Reader:
    return Reader(SimpleNamespace(model=model, tokenizer=tokenize), "fp32", "cpu", batch_size)  # type: ignore[arg-type]


def tokenize(texts: list[str]) -> Tensor:
    """Return the last eight letters of each text as tokens."""
    rows = [[1 + ord(letter) % 30 for letter in text[-8:]] for text in texts]
    return torch.tensor([row + [0] * (8 - len(row)) for row in rows])


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    vision = {"image_size": 16, "patch_size": 8, "layers": 1, "width": 16, "head_width": 8}
    text = {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1}
    return open_clip.CLIP(embed_dim=8, vision_cfg=vision, text_cfg=text).eval()


@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_classifier_equals_that_of_open_clip(model: nn.Module, batch_size: int) -> None:
    templates = ("{}", "the {}!", "{}-{}")
    found = directions(CLASSES, templates, reader(model, batch_size))
    reference = open_clip.build_zero_shot_classifier(
        model,
        tokenize,
        CLASSES,
        [lambda name: name, lambda name: f"the {name}!", lambda name: f"{name}-{name}"],
        num_classes_per_batch=None,
    )
    torch.testing.assert_close(found, reference)
    assert found.shape == (8, len(CLASSES))


def test_direction_of_a_class_is_the_normalised_mean_of_its_prompts(model: nn.Module) -> None:
    found = directions(CLASSES, ("a {}", "{} b"), reader(model, 2))
    with torch.no_grad():
        both = [model.encode_text(tokenize([f"a {name}", f"{name} b"]), normalize=True) for name in CLASSES]
    by_hand = torch.stack([functional.normalize(pair.mean(dim=0), dim=0) for pair in both], dim=1)
    torch.testing.assert_close(found, by_hand)


def test_model_in_training_mode_is_evaluated_without_dropout(model: nn.Module) -> None:
    """Hugging Face towers have dropout. The model must be in training mode again afterwards."""
    expected = directions(CLASSES, ("a {}",), reader(model, 8))
    in_training = copy.deepcopy(model).train()
    in_training.token_embedding = nn.Sequential(in_training.token_embedding, nn.Dropout(0.5))
    in_training.visual = nn.Sequential(nn.Dropout(0.5), in_training.visual)
    torch.testing.assert_close(directions(CLASSES, ("a {}",), reader(in_training, 8)), expected)
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = [encode_images(images, reader(network, 8)) for network in (model, in_training)]
    torch.testing.assert_close(*found)
    assert in_training.training


def test_other_braces_in_a_prompt_are_plain_text(model: nn.Module) -> None:
    found = directions(CLASSES, ("{x}{}",), reader(model, 8))
    with torch.no_grad():
        by_hand = model.encode_text(tokenize(["{x}" + name for name in CLASSES]), normalize=True).T
    torch.testing.assert_close(found, by_hand)


def test_metrics_equal_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = functional.normalize(torch.randn(16, 7, generator=generator), dim=0)
    labels = torch.randint(6, (200,), generator=generator)  # the seventh class never occurs
    images = functional.normalize(weights.T[labels] + 0.8 * torch.randn(200, 16, generator=generator), dim=1)
    found = classification.results(images, labels, 100 * weights)
    logits = images @ (100 * weights)
    top1, top5 = (top_k_accuracy_score(labels, logits, k=k, labels=range(7)) for k in (1, 5))
    assert (found.acc1, found.acc5) == (top1, top5)
    assert 0.3 < found.acc1 < found.acc5 < 1
    predicted = logits.argmax(dim=1).numpy()
    assert (found.predictions == predicted).all()
    assert found.mean_per_class_recall == pytest.approx(
        recall_score(labels, predicted, labels=range(6), average="macro")
    )
    assert found.confusion is not None
    assert (found.confusion == confusion_matrix(labels, predicted, labels=range(7))).all()
    assert found.confusion.dtype == found.predictions.dtype == "int64"
    assert found.confidence == pytest.approx(logits.softmax(dim=1).max(dim=1).values.numpy())


def test_similarities_to_many_classes_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    images, labels, weights = torch.randn(50, 4), torch.randint(30, (50,)), torch.randn(4, 30)
    whole = classification.results(images, labels, weights)
    monkeypatch.setattr(classification, "MOST_AT_ONCE", 200)
    rows: list[int] = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda logits, dim: rows.append(len(logits)) or softmax(logits, dim))
    parts = classification.results(images, labels, weights)
    assert rows == [6] * 8 + [2]
    assert (parts.acc1, parts.acc5, parts.predictions.tolist()) == (whole.acc1, whole.acc5, whole.predictions.tolist())
    assert parts.confidence == pytest.approx(whole.confidence)


@pytest.mark.parametrize("second", range(1, 10))
def test_unlikely_classes_are_ordered_by_their_cosines(second: int) -> None:
    cosines = torch.full((1, 10), -0.45)
    cosines[0, 0], cosines[0, second] = 0.8, -0.30
    found = classification.results(cosines, torch.tensor([second]), 100 * torch.eye(10))
    assert (found.acc1, found.acc5) == (0, 1)


@pytest.mark.parametrize(("classes", "acc5"), [(5, None), (6, 0.5)])
def test_five_classes_have_no_top_5_accuracy(classes: int, acc5: float | None) -> None:
    """Every prediction would be right. The first label is the most likely class, the second the least likely."""
    probabilities = torch.tensor([[0.3, 0.25, 0.2, 0.15, 0.1, 0.0][:classes]] * 2)
    found = judged(probabilities, torch.tensor([0, classes - 1]))
    assert (found.acc1, found.acc5) == (0.5, acc5)


def test_fewer_than_five_classes_have_no_top_5_accuracy() -> None:
    probabilities = torch.eye(4)[[0, 1, 2, 3, 0]]
    found = judged(probabilities, torch.tensor([0, 1, 2, 3, 1]))
    assert found.acc5 is None
    assert found.acc1 == pytest.approx(0.8)
    assert found.mean_per_class_recall == pytest.approx((1 + 0.5 + 1 + 1) / 4)


def test_recalls_are_computed_in_double_precision() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    found = judged(functional.one_hot(torch.tensor([0, 1, 1, 1, 0, 0, 0, 0, 0, 0]), 2).double(), labels)
    assert found.mean_per_class_recall == pytest.approx((1 / 3 + 1 / 7) / 2, rel=1e-15)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([0, 4], "Labels must be 0 to 3, but these are not: 4."),
        ([-1, 0], "Labels must be 0 to 3, but these are not: -1."),
        ([9, 8, 7, 6, 5, 4, 4], "Labels must be 0 to 3, but these are not: 4, 5, 6 and 3 more."),
    ],
)
def test_labels_outside_the_classes_are_refused(labels: list[int], error: str) -> None:
    with pytest.raises(Refused, match=f"^{error}$"):
        judged(torch.ones(len(labels), 4) / 4, torch.tensor(labels, dtype=torch.int64))


def test_probe_accuracy_equals_scikit_learn_at_one_of_the_strengths() -> None:
    digits = load_digits()
    features = functional.normalize(torch.tensor(digits.data, dtype=torch.float32), dim=1)
    labels = torch.tensor(digits.target)
    known, held = slice(0, 600), slice(600, 900)
    found = probe(features[known], labels[known], features[held], labels[held])
    scores = [
        LogisticRegression(C=strength, max_iter=1000)
        .fit(features[known], labels[known])
        .score(features[held], labels[held])
        for strength in classification.STRENGTHS
    ]
    assert found.acc1 in [pytest.approx(score) for score in scores]
    assert found.acc1 > 0.85
    assert found.acc5 is not None
    assert found.acc5 > 0.98
    assert found.classes == 10
    assert probe(features[known], labels[known], features[held], labels[held]).acc1 == found.acc1


@pytest.mark.slow
def test_probe_of_many_classes_is_trained() -> None:
    """Features of all classes are similar, as with CLIP. scikit-learn's own tolerance would end the fit at once."""
    torch.manual_seed(6)
    labels = torch.arange(500).repeat(3)
    of_class = functional.normalize(torch.randn(500, 32), dim=1)
    features = functional.normalize(torch.eye(32)[0] + 0.05 * of_class[labels], dim=1)
    found = probe(features, labels, features, labels, strengths=(1e5,))
    assert found.acc1 == 1


def test_probe_is_fitted_in_float32_and_equals_scikit_learn_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 takes half the time."""
    digits = load_digits()
    features = functional.normalize(torch.tensor(digits.data, dtype=torch.float32), dim=1)
    labels, known, held = torch.tensor(digits.target), slice(0, 600), slice(600, 900)
    references = [LogisticRegression(C=c, max_iter=1000).fit(features[known].double(), labels[known]) for c in (0.1, 1)]
    dtypes, fit = [], LogisticRegression.fit

    def recorded(model: LogisticRegression, inputs: Any, wanted: Any) -> LogisticRegression:
        dtypes.append(inputs.dtype)
        return fit(model, inputs, wanted)

    monkeypatch.setattr(LogisticRegression, "fit", recorded)
    for reference in references:
        found = probe(features[known], labels[known], features[held], labels[held], strengths=(reference.C,))
        expected = reference.predict_proba(features[held].double()).max(axis=1)
        assert found.confidence == pytest.approx(expected, abs=1e-4)
        assert found.acc1 == pytest.approx(reference.score(features[held].double(), labels[held]), abs=1e-3)
    assert dtypes == [np.float32] * 2


def test_probe_predicts_only_classes_of_its_training_data() -> None:
    torch.manual_seed(2)
    labels = torch.tensor([0, 2] * 10)
    features = torch.eye(3)[labels] + 0.01 * torch.randn(20, 3)
    found = probe(features, labels, torch.eye(3), torch.arange(3), classes=4)
    assert found.classes == 4
    assert found.predictions[[0, 2]].tolist() == [0, 2]
    assert found.predictions[1] in (0, 2)
    unnamed = probe(features, labels, torch.eye(4)[:, :3], torch.arange(4))
    assert unnamed.classes == 4
    with pytest.raises(Refused, match=r"^Labels must be 0 to 1, but these are not: 2\.$"):
        probe(features, labels, torch.eye(3)[:2], torch.arange(2), classes=2)
    assert classification.renumbered(labels, ("a", "b", "c"), ()) is labels, "the evaluated data have no names"
    renumbered = classification.renumbered(torch.tensor([0, 1]), ("lamp", "owl"), ("owl", "lamp", "lamp"))
    assert renumbered.tolist() == [1, 0], "the first of two classes with one name"


def test_probe_of_a_single_class_is_refused() -> None:
    with pytest.raises(Refused, match="at least two classes"):
        probe(torch.eye(3), torch.zeros(3, dtype=torch.int64), torch.eye(3), torch.arange(3))


def test_features_with_one_infinite_number_are_refused() -> None:
    features = torch.ones(3, 2)
    check_finite(features, "images")
    features[1, 0] = torch.inf
    with pytest.raises(Refused, match="the features of 1 of 3 images are not finite"):
        check_finite(features, "images")


def test_each_class_has_its_own_prompts(model: nn.Module) -> None:
    """CLIP_benchmark's formula: the normalised mean of normalised features."""
    prompts = {"cat": ["a", "b c", "d"], "dog": ["e f"]}
    found = directions(("dog", "cat"), (), reader(model, 2), prompts)
    with torch.no_grad():
        by_hand = [
            functional.normalize(model.encode_text(tokenize(prompts[name])), dim=-1).mean(0) for name in ("dog", "cat")
        ]
    torch.testing.assert_close(found, torch.stack([mean / mean.norm() for mean in by_hand], dim=1))
    with pytest.raises(Refused, match="no prompts for 1 of 2 classes: sea"):
        directions(("cat", "sea"), (), reader(model, 2), prompts)


def test_shots_are_drawn_from_each_class_by_the_seed() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2] * 3)
    chosen = classification.few_shot(labels, 4, seed=1)
    assert torch.bincount(labels[chosen]).tolist() == [4, 4, 4]
    assert len(set(chosen.tolist())) == 12
    assert chosen.tolist() == sorted(chosen.tolist())
    assert len(classification.few_shot(labels, 6, seed=1)) == 18, "class 2 has six"
    assert chosen.tolist() == classification.few_shot(labels, 4, seed=1).tolist()
    assert chosen.tolist() != classification.few_shot(labels, 4, seed=2).tolist()
    with pytest.raises(Refused, match=r"have fewer: class 2 \(6\)"):
        classification.few_shot(labels, 7, seed=1)


def test_single_strength_is_used_and_the_best_of_several_is_chosen() -> None:
    torch.manual_seed(3)
    labels = torch.arange(3).repeat(30)
    features = functional.normalize(torch.eye(3)[labels] + torch.randn(90, 3), dim=1)
    probes = [probe(features, labels, features, labels, strengths=(c,)) for c in (1e-4, 5.0)]
    reference = [LogisticRegression(C=c, max_iter=1000).fit(features, labels) for c in (1e-4, 5.0)]
    for found, model in zip(probes, reference, strict=True):
        assert found.confidence == pytest.approx(model.predict_proba(features).max(axis=1), abs=1e-5)
    assert [found.c for found in probes] == [1e-4, 5.0]
    fit, choose, fit_labels, choose_labels = train_test_split(
        features.double().numpy(), labels.numpy(), test_size=0.2, random_state=0, stratify=labels
    )
    values = (1e-4, 1e-2, 1.0)
    scores = [LogisticRegression(C=c, max_iter=1000).fit(fit, fit_labels).score(choose, choose_labels) for c in values]
    chosen = probe(features, labels, features, labels, strengths=values).c
    assert chosen == values[scores.index(max(scores))]
    for few in (np.arange(5).repeat(2), np.array([0] * 8 + [1] * 6 + [2])):  # these cannot be stratified
        assert value_of(classification.strength(np.eye(len(few)), few, 0, event, values)) in values


def test_middle_strength_is_used_if_the_rest_has_one_class() -> None:
    """This seed holds out two of six pairs, one of them the only pair of its class."""
    labels = np.array([0, 0, 0, 1, 0, 0])
    rest = train_test_split(labels, test_size=0.2, random_state=3)[0]
    assert set(rest) == {0}
    assert value_of(classification.strength(np.eye(6), labels, 3, event, (1e-4, 1e-2, 1.0))) == 1e-2


def test_average_precision_equals_clip_benchmark_and_scikit_learn() -> None:
    """CLIP_benchmark's formula, without ties: the mean of the precision at the rank of each image of the class."""
    torch.manual_seed(5)
    images, weights = functional.normalize(torch.randn(60, 8), dim=1), functional.normalize(torch.randn(8, 4), dim=0)
    targets = torch.rand(60, 4) < torch.tensor([0.1, 0.5, 0.9, 0.0])
    found = classification.average_precisions(images, targets, weights)
    for place in range(3):
        truth = targets[(images @ weights)[:, place].argsort(descending=True), place]
        precision = truth.float().cumsum(0) / torch.arange(1, 61)
        assert found[place] == pytest.approx((precision[truth].sum() / truth.sum()).item(), abs=1e-6)
    assert found[:3] == pytest.approx(average_precision_score(targets[:, :3], images @ weights[:, :3], average=None))
    assert isnan(found[3])
