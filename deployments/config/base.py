"""The base of every section of the configuration."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Unknown keys are refused: a misspelt option must not be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
