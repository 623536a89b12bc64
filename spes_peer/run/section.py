"""What every section of the manifest is made of."""

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator


class Section(BaseModel):
    """Frozen; unknown keys and numbers that are none are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def misfits(self) -> Iterator[str]:
        """What is wrong between values that are right by themselves."""
        yield from ()

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Self:
        """The first of the misfits refuses it; a list given as context takes all of them instead."""
        if isinstance(info.context, list):
            info.context.extend(self.misfits())
        else:
            for misfit in self.misfits():
                raise ValueError(misfit)
        return self
