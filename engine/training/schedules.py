"""Learning rates by step: open_clip's schedules as pure functions. A resumed training needs no state of theirs."""

import math
from collections.abc import Callable

from engine.specs import Refused


def learning_rate(
    kind: str, *, base: float, warmup: int, steps: int, cooldown: int = 0, power: float = 1.0, end: float = 0.0
) -> Callable[[int], float]:
    """Return a function from a step, counted from 0, to its learning rate. All lengths are optimizer steps.

    It rises in a line to `base` at the last step of `warmup`. From there `cosine` falls towards 0 at `steps`, `const`
    stays, and `const-cooldown` falls in the last `cooldown` towards `end`, by (1 - progress) ** power. Past `steps`
    it stays where it has ended. Errors: Refused of another kind.
    """

    def cosine(step: int) -> float:
        falling = max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(step - warmup, falling) / falling)) * base

    def cooled(step: int) -> float:
        start = steps - cooldown
        if step < start or not cooldown:
            return base
        progress = min(1.0, (step - start) / cooldown)
        return float((1 - progress) ** power * (base - end) + end)

    after = {"cosine": cosine, "const": lambda step: base, "const-cooldown": cooled}.get(kind)
    if after is None:
        raise Refused(f"there is no schedule {kind!r}: take cosine, const or const-cooldown")

    def rate(step: int) -> float:
        return base * (step + 1) / warmup if step < warmup else after(step)

    return rate
