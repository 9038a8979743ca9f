"""Register the kinds of run that misbehave on request in every process of a test. Its folder is on PYTHONPATH.

The scheduler, the warm process and the worker then find these kinds by name, as they find the real ones.
"""

import os
import socket
from pathlib import Path

import trial_kinds  # noqa: F401  defining specs and rows registers them

import engine.tasks

engine.tasks.__path__.append(str(Path(__file__).parent / "tasks"))

if name := os.environ.get("TEST_HOST_NAME"):  # the nodes of the test cluster share one machine
    socket.gethostname = lambda: name
