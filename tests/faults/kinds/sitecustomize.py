"""Put on PYTHONPATH, this gives every process of a test the kinds of run that misbehave on request.

The scheduler, the warm process and the worker then serve them exactly as they serve the real kinds: by name.
"""

import os
import socket
from pathlib import Path

import trial_kinds  # noqa: F401  specs and rows are known once they are defined

import engine.tasks

engine.tasks.__path__.append(str(Path(__file__).parent / "tasks"))

if name := os.environ.get("TEST_HOST_NAME"):  # several nodes of a cluster are on one machine here
    socket.gethostname = lambda: name
