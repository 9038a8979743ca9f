"""Fixtures of the tests of tasks."""

import pytest


@pytest.fixture
def scalar_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that the test starts compile to C++ code without vector instructions.

    To find out which of these work, torch builds six programs for each empty cache: 10 CPU-seconds.
    """
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
