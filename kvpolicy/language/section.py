"""What every model of the grammar has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    # By name too, so that Python code writes Retain(weight=8, ttl_ms=600_000); `from_document` turns that off for
    # files.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True)
