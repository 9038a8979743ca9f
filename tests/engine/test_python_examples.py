"""The examples of docs/python.md run one after the other, with the results that the page states."""

import re
from contextlib import closing
from typing import Any

import pytest

from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import State, open_store


@pytest.mark.slow
def test_examples_run_and_give_what_the_page_states(
    settings: Settings, no_scheduler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/python.md").read_text()
    values: dict[str, Any] = {}
    with closing(open_store(settings)) as store:
        store.enqueue(ProfileSpec(models=("timm:resnet18",)), name="counts")
        for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(example, values)
        timing, counts = store.runs()
        values["store"].close()
    assert f"print(counted.flops)  # {values['counted'].flops:,}:" in page
    assert values["counted"].uncounted["native_batch_norm"] == 20
    assert list(values["table"]["status"]) == ["ok", "ok"]
    assert not values["session"].failed
    assert values["speed_up"].verdict == "needs 3 processes"
    assert (timing.kind, timing.name, timing.state) == ("benchmark", "from a notebook", State.QUEUED)
    assert re.search(rf"^{counts.id} counts \(0, \d+\)$", capsys.readouterr().out, re.MULTILINE)
