"""Fit the costs of work to measured times, and find the error on families of models that the fit has not seen.

The model is linear with non-negative costs: seconds per sample = sum of work x cost. It minimises absolute relative
errors, because a few published times are outliers. Non-linear models of the residuals gained nothing on
unseen families.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from engine.estimate.work import FEATURES, Floats

FOLDS = 8
"""Folds of the cross-validation that chooses the strength."""
ROUNDS = 8
"""Rounds of reweighting. More change the errors by less than 0.1 %."""
SMALLEST = 0.03
"""Relative errors below this weigh equally, so that the weights stay finite."""
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Strengths with which the costs of a device are pulled together: from next to none to as strongly as 30 models."""
ABSOLUTE_WEIGHT = 0.2
"""Weight of the absolute errors against the squared pull."""
TOLERANCE = 1.05
"""Factor by which the error of a stronger pull may exceed the smallest error."""


def fit(work: Floats, seconds: Floats, families: npt.ArrayLike, strengths: Sequence[float] = STRENGTHS) -> Floats:
    """Return the non-negative cost of each feature with the least absolute relative error.

    work: (samples, features). seconds: per sample. Costs are pulled (see `scale_costs`) towards one cost per group
    of COARSE: otherwise a kind of operator that few families use would be fitted to those families alone. Of all
    strengths whose median error in folds of these families is at most TOLERANCE times the smallest, the largest is
    used: smoother costs are steadier and serve other devices better as a prior. Leave out families that the costs
    will be tested on: they would influence the choice.
    """
    if len(strengths) == 1:
        return _fit_at(work, seconds, strengths[0])
    errors: dict[float, float] = {}
    for strength in strengths:
        predicted = np.zeros(len(seconds))
        for train, test in splits(families):
            predicted[test] = work[test] @ _fit_at(work[train], seconds[train], strength)
        errors[strength] = float(np.median(np.abs(predicted / seconds - 1)))
    near = [strength for strength, error in errors.items() if error <= TOLERANCE * min(errors.values())]
    return _fit_at(work, seconds, max(near, default=strengths[0]))


def _fit_at(work: Floats, seconds: Floats, strength: float) -> Floats:
    """Return the costs of `fit` for one strength."""
    units = np.array([feature.partition(":")[2] for feature in FEATURES])
    uniform = float(np.median(seconds)) / np.array([work[:, units == unit].sum(axis=1).mean() for unit in units])
    prior = np.maximum(scale_costs(uniform, work, seconds, COARSE, 0.1), 1e-3 * uniform)
    return scale_costs(prior, work, seconds, EACH, strength)


def scale_costs(prior: Floats, work: Floats, seconds: Floats, groups: Sequence[int], strength: float) -> Floats:
    """Return the costs of another device, scaled to measured times by one factor per group of features.

    The factors are pulled towards the median ratio of measured to predicted times, with `strength` times the group's
    mean share of the time: as strongly as that many models would pull.
    """
    group = np.asarray(groups)
    shares = np.stack([(work * prior)[:, group == index].sum(axis=1) for index in range(group.max() + 1)], axis=1)
    common = float(np.median(seconds / shares.sum(axis=1)))
    relative = shares * common / seconds[:, None]
    pull = np.sqrt(strength * relative.mean(axis=0) + 1e-9)
    factors = _least_absolute(relative, np.diag(pull), pull)
    costs: Floats = prior * common * factors[group]
    return costs


def _least_absolute(relative: Floats, ridge: Floats, target: Floats) -> Floats:
    """Return x >= 0 that minimises ABSOLUTE_WEIGHT * sum |relative x - 1| + |ridge x - target|^2.

    Solved by iteratively reweighted least squares: each squared error counts ABSOLUTE_WEIGHT / 2 over its absolute
    value of the round before.
    """
    from scipy.optimize import nnls  # takes 0.2 s to import, and prediction does without it

    weight = np.ones(len(relative))
    for _ in range(ROUNDS):
        rows, goal = np.vstack([relative * weight[:, None], ridge]), np.concatenate([weight, target])
        factors: Floats = nnls(rows, goal, maxiter=100 * rows.shape[1])[0]
        weight = np.sqrt(ABSOLUTE_WEIGHT / 2 / np.maximum(np.abs(relative @ factors - 1), SMALLEST))
    return factors


def _coarse(feature: str) -> int:
    kind, unit = feature.split(":")
    if unit != "gflop":
        return 3 if unit == "gb" else 4
    return 0 if kind == "convolution" else 1 if kind.endswith("convolution") else 2


COARSE = tuple(map(_coarse, FEATURES))
"""Groups of features for `scale_costs`: dense convolutions, other convolutions, matrix products, bytes, calls."""
EACH = tuple(range(len(FEATURES)))


def adapt_costs(prior: Floats, work: Floats, seconds: Floats) -> Floats:
    """Return the costs of a device with few timings: `prior`, a known device's, scaled by group, then by feature.

    The strengths were chosen between published devices (benchmarks/estimate_error.py).
    """
    return scale_costs(scale_costs(prior, work, seconds, COARSE, 0.3), work, seconds, EACH, 10)


def splits(families: npt.ArrayLike) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Yield the masks of the models to fit and to test, a pair per fold. No family is in both.

    The largest families are placed first, each in the fold with the fewest models.
    """
    names, members, counts = np.unique(np.asarray(families), return_inverse=True, return_counts=True)
    fold_of, sizes = np.zeros(len(names), dtype=np.int64), np.zeros(FOLDS)
    for family in np.argsort(-counts, kind="stable"):
        fold_of[family] = sizes.argmin()
        sizes[fold_of[family]] += counts[family]
    fold = fold_of[members]
    for index in np.unique(fold):
        yield fold != index, fold == index
