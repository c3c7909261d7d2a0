"""Fixtures every test file may use."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tiny.files import TinyFiles

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    """Tiny models by name: `tiny.target("qwen3")`, `tiny.head("plain")`, `tiny.pair("plain")`, ..."""
    return TinyFiles(tmp_path_factory.mktemp("tiny"))
