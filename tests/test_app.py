"""The launcher, beside what the browser tests see of it."""

import pytest

from app import refuse_strangers
from engine.settings import Settings
from engine.specs import Refused


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_is_served(address: str) -> None:
    refuse_strangers(Settings(), address)


@pytest.mark.parametrize("address", [None, "", "0.0.0.0", "::", "192.168.0.7", "8.8.8.8", "example.org"])
def test_other_machines_are_not_unless_something_in_front_asks_who_is_there(address: str | None) -> None:
    with pytest.raises(Refused, match="these pages have no login"):
        refuse_strangers(Settings(), address)
    refuse_strangers(Settings(public=True), address)
