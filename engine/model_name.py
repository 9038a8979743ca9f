"""The qualified name of a model, such as `timm:resnet50`: a library and the model's name in it."""

from typing import Any, Self

from pydantic_core import CoreSchema, core_schema

OWN = "config"
"""Prefix in place of a library, for an open_clip configuration that is part of the request."""
PYTHON = "python"
"""Prefix in place of a library, for a module of the user's own: `python:package.module:factory`."""


class ModelName(str):
    """A qualified name, `library:model`. A subclass of str, so that it works as a key, in tables and in JSON."""

    __slots__ = ()

    @classmethod
    def of(cls, library: str, model: str) -> Self:
        """Return the name of a library's model."""
        return cls(f"{library}:{model}")

    @property
    def library(self) -> str:
        """Return the part before the first colon; the whole name if it has none."""
        return self.partition(":")[0]

    @property
    def model(self) -> str:
        """Return the part after the first colon; empty if the name has none."""
        return self.partition(":")[2]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """Let pydantic fields have this type: it is parsed from any string and serialised as one."""
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @property
    def is_own(self) -> bool:
        """Return whether the name refers to a configuration that is part of the request."""
        return self.library == OWN

    @property
    def runs_code(self) -> bool:
        """Return whether building the model runs Python code that the name refers to."""
        return self.library == PYTHON
