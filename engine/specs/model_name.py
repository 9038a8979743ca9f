"""The name of a model: `timm:resnet50`, of a library and the model's name in it."""

from typing import Any, Self

from pydantic_core import CoreSchema, core_schema

OWN = "config"
"""In place of a library: an open_clip configuration that a request brings along."""


class ModelName(str):
    """A qualified name, `library:model`. A str, so that it is a key, a cell of a table and JSON as it is."""

    __slots__ = ()

    @classmethod
    def of(cls, library: str, model: str) -> Self:
        """Return the name of a library's model."""
        return cls(f"{library}:{model}")

    @property
    def library(self) -> str:
        """The part before the first colon; the whole of a name without one."""
        return self.partition(":")[0]

    @property
    def model(self) -> str:
        """The part after the first colon; empty for a name without one."""
        return self.partition(":")[2]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """Let fields of requests and messages have this type: read from any string, written as one."""
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @property
    def is_own(self) -> bool:
        """Whether it is a configuration of the request's own."""
        return self.library == OWN
