"""Fixtures every test file may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tiny import browser as browsers
from tiny.files import TinyFiles

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    """Tiny models by name: `tiny.target("qwen3")`, `tiny.head("plain")`, `tiny.pair("plain")`, ..."""
    return TinyFiles(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Row checks are kept where no other run of the tests, and no user, finds them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, by selenium; for `tiny.browser.read_page`."""
    yield from browsers.start()
