"""Every result made in these tests has known metrics and writes its numbers in one way."""

import re

import pytest

from rankscope.metric_catalogue import knowing, metric
from rankscope.results import Result


@pytest.fixture(autouse=True, scope="module")
def results_are_checked():
    """Look at each result where it is made; see also ``tests/test_metric_catalogue.py``."""
    made = Result.__init__

    def make(self, *args, **options):
        made(self, *args, **options)
        with knowing(self.metrics):
            unknown = [name for name in set(self.table["metric"]) if not metric(name).definition]
        assert not unknown, f"{self.id} measures what metric_catalogue does not know: {unknown}"
        written = [said for said in self.sentences if re.search(r"\de[-+]\d", said)]
        assert not written, f"{self.id} writes an exponent without rankscope.numerals: {written}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "__init__", make)
        yield
