"""Tiny models as files, made once a session."""

from __future__ import annotations

from pathlib import Path

from tiny import head_file, heads, targets


class TinyFiles:
    """Paths of tiny models by name, written when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def target(self, name: str, file_type: str = "f32") -> Path:
        """The target as GGUF; names in tiny.targets.TARGETS."""
        path = self._folder / f"{name}-{file_type}.gguf"
        return path if path.exists() else targets.write(targets.TARGETS[name], path, file_type)

    def head(self, name: str, file_type: str = "f32") -> Path:
        """The head as GGUF, straight from its numbers; names in tiny.heads.HEADS."""
        path = self._folder / f"{name}-head-{file_type}.gguf"
        return path if path.exists() else head_file.write(heads.HEADS[name], path, file_type)

    def checkpoint(self, name: str) -> Path:
        """The head as a Hugging Face folder."""
        path = self._folder / f"{name}-checkpoint"
        return path if path.exists() else heads.checkpoint(heads.HEADS[name]).write(path)

    def pair(self, head: str, file_type: str = "f32") -> tuple[Path, Path]:
        """Target and head, the head always F32."""
        return self.target(heads.HEADS[head].target, file_type), self.head(head)
