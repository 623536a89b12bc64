"""What every section of the manifest is made of."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen; unknown keys and numbers that are none are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
