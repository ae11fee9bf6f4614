"""The models that Deskmate recommends: ``recommended.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

_FILE = Path(__file__).with_name("recommended.yaml")


class Wheel(BaseModel):
    """A package on PyPI that has a model's file in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int
    member: str = Field(description="The model's file in the wheel.")
    member_bytes: int
    generation_config: dict[str, float] = Field(
        {}, description="The sampling parameters that its authors recommend, where the file itself names none."
    )

    @property
    def model_file(self) -> str:
        """The name of the model's file in the models folder."""
        return PurePosixPath(self.member).name


class RecommendedModel(BaseModel):
    """A model on the list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="What to give to `deskmate model get`, and to the download route.")
    title: str
    description: str = Field(description="One or two sentences.")
    size_mb: int = Field(description="Size of the download in millions of bytes.")
    licence: str = Field(description="Name of the licence, or of the publisher's own terms.")
    terms: Literal["open", "own"] = Field(
        description="open: an open-source licence. own: the publisher's terms, which restrict the use."
    )
    hub: str = Field(description="Its id on the Hugging Face Hub.")
    wheel: Wheel | None = Field(None, exclude=True)


@cache
def recommended_models() -> tuple[RecommendedModel, ...]:
    """Returns the list, in its order."""
    return read_list()


def read_list() -> tuple[RecommendedModel, ...]:
    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(RecommendedModel.model_validate(entry) for entry in entries)


def find_recommended(name: str) -> RecommendedModel | None:
    """Returns the model on the list with this name, in any casing, or with this hub id."""
    for model in recommended_models():
        if name.casefold() == model.name or name == model.hub:
            return model
    return None
