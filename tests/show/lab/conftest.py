"""One lab for all tests of this folder: it takes seconds to start."""

import pytest

from .process import running_lab


@pytest.fixture(scope="session")
def lab():
    with running_lab() as found:
        yield found
