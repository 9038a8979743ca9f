"""Let the process that answers questions start without torch. The folder of this file is on its PYTHONPATH.

It answers only searches: the best hit is the image with the name of the text. It prints as libraries of models do.
"""

import os

from engine.results.answers import Hit, Hits
from engine.specs.questions import Search
from engine.tasks import answers

answers.ANSWERED_BY = {Search: __name__}


def answer(question: Search) -> Hits:
    """Return one hit, after printing through Python and directly to the descriptor."""
    print("printed by Python", flush=True)
    os.write(1, b"printed past it\n")
    return Hits(hits=(Hit(index=0, source=f"{question.text}.png", label="", similarity=1.0),), images=1)
