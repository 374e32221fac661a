"""Kinds of files, their versions, and how what an earlier release wrote is brought to the present form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grown.errors import FileError

Meta = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str  # in the file, as "format"
    words: str
    version: int  # that is written
    sealed: int  # from this version on the metadata have a digest of their own
    names: tuple[str, ...] = ()  # keys whose values are short texts, by which the rest is understood
    upgrades: Mapping[int, Callable[[Meta], Meta]] = field(default_factory=dict)  # n -> metadata of n as of n + 1

    def upgrade(self, meta: Any) -> Meta:
        """Metadata of any version up to the present as the present version has them."""
        if not isinstance(meta, dict) or meta.get("format") != self.name:
            raise FileError(f"it is not {self.words} of this library")
        version = self.version_of(meta)
        for key in self.names:
            if not isinstance(meta.get(key), str) or len(meta[key]) > 30:
                raise FileError(f"it does not say which {key} it is of")
        while version < self.version:
            meta, version = self.upgrades[version](meta), version + 1
        return {**meta, "version": version}

    def version_of(self, meta: Meta) -> int:
        """A file's version, if this release reads it."""
        version = meta.get("version")
        if type(version) is not int or version < 1:
            raise FileError(f"its format version is {str(version)[:30]}, which never was")
        if version > self.version:
            raise FileError(
                f"its format version is {version}, but this release of grown reads versions up to {self.version}; "
                "use a newer release"
            )
        return version


def _model_of_version_1(meta: Meta) -> Meta:
    """Version 1 did not say by which arithmetic a task's probe was computed."""
    lists: Meta = {key: meta[key] for key in ("tasks", "ahead") if key in meta}
    for key, tasks in lists.items():
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise FileError(f"its {key} are not a list of objects")
        lists[key] = [{**task, "arithmetic": None} for task in tasks]
    return {**meta, **lists}


MODEL = Kind("grown-model", "a model", version=2, sealed=2, names=("method",), upgrades={1: _model_of_version_1})
DELTA = Kind("grown-delta", "a delta", version=1, sealed=1, names=("method",))
