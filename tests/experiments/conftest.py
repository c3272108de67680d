"""Every result an experiment of these tests comes to has metrics of the catalogue alone."""

import pytest

from rankscope.metric_catalogue import METRICS
from rankscope.results import Result


@pytest.fixture(autouse=True, scope="module")
def known_metrics():
    """Look at each result where it is made; see also ``tests/test_metric_catalogue.py``."""
    made = Result.__init__

    def make(self, *args, **options):
        made(self, *args, **options)
        unknown = set(self.table["metric"]) - set(METRICS)
        assert not unknown, f"{self.id} measures what metric_catalogue does not know: {unknown}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "__init__", make)
        yield
