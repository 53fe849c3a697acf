"""Moved to `kvpolicy.runtime.active`; these names stay until every importer has followed."""

from __future__ import annotations

from kvpolicy.runtime.active import ActivePolicy, Conflict, Setting, current, set_current

__all__ = ["ActivePolicy", "Conflict", "Setting", "current", "set_current"]
