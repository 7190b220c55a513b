"""A browser for the tests of the Studio's page: one a file, and a tab of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from browser import Tab


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    from browser import chromium  # which needs Playwright

    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Tab]:
    """A tab for the file's ``url``; the browser may complain of nothing."""
    from browser import tab

    with tab(browser, url) as found:
        yield found
    assert found.complaints == []
