"""What every section of the manifest is made of."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a sign in it cannot be printed")
    return text


Printable = Annotated[str, AfterValidator(_printable)]
"""What people read: nothing in it moves a cursor, breaks a line or turns a text around."""


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
