"""The server: figures of states, one sentence for every mistake, and many pages at once."""

import asyncio
import gc
import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlencode

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.show.lab._compute import run_task
from rankscope.show.lab._server import _computed, description
from rankscope.show.lab._state import PARAMETERS, State
from rankscope.show.lab._worker import CallError

SMALL = "layers=1&tokens=3&width=2"
PARTS = ["/", "/lab.css", "/lab.js", "/mask.js", "/controls.js", "/charts.js", "/icon.svg"]


@pytest.mark.parametrize("part", ["first", "second"])
def test_figures_are_those_computed_here(lab, part):
    reply = lab.get(f"/state.json?{SMALL}&part={part}&session=abc")
    assert reply.status == 200
    assert reply.headers["cache-control"] == "no-store"
    assert reply.json == json.loads(run_task(part, SMALL))


def test_the_snippet_and_the_picture_are_files(lab):
    reply = lab.get(f"/snippet?{SMALL}")
    assert reply.body == run_task("snippet", SMALL)
    assert reply.headers["content-disposition"] == 'attachment; filename="lab.py"'
    reply = lab.get(f"/figure.svg?{SMALL}&chart=spectrum")
    assert reply.headers["content-type"] == "image/svg+xml"
    assert b"1 layer, width 2" in reply.body


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/state.json?layers=65", "layers='65' is not an integer from 1 to 64."),
        ("/state.json?part=third", "part='third' is unknown; choose first or second."),
        ("/state.json?session=..%2F", "expected up to 32 letters and digits."),
        ("/state.json?session=a&session=b", "is given twice; give it once."),
        ("/state.json?scores=linformer&mask=causal", "use mask='full'"),
        ("/state.json?scores=rotary&width=6", "head_width=3 is odd; use an even one."),
        ("/state.json?tokens=3&mask=bits:000", "has no key to attend to"),
        ("/snippet?scores=rotary&width=6", "head_width=3 is odd"),
        ("/snippet?chart=plane", "unknown parameter 'chart'"),
        ("/figure.svg?chart=../x", "chart='../x' is unknown; choose residual"),
        ("/state.json?model=bert", "unknown parameter 'model'"),
    ],
)
def test_mistakes_get_a_422_with_a_sentence(lab, path, said):
    reply = lab.get(path)
    assert reply.status == 422
    assert said in reply.json["error"]


TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers(-5, 12).map(str),
    st.floats(-1, 5).map(str),
    st.sampled_from(
        ["full", "causal", "window:1", "window:48", "star:0", "prefix:9", "block:0", "strided:0"]
    ),
)
FIELDS = st.one_of(
    *(
        st.tuples(st.just(name), st.sampled_from(list(each.options)))
        for name, each in PARAMETERS.items()
        if hasattr(each, "options")
    ),
    st.tuples(st.sampled_from([*PARAMETERS, "part", "session", "chart"]), TEXTS),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(FIELDS, max_size=5, unique_by=lambda pair: pair[0]), st.sampled_from(["", "second"])
)
def test_fuzzed_parameters_never_give_a_500(lab, fields, part):
    small = {"layers": "2", "tokens": "5", "width": "8"}
    asked = urlencode({**small, **dict(fields), **({"part": part} if part else {})})
    reply = lab.get(f"/state.json?{asked}")
    assert reply.status in (200, 422), reply.body
    if reply.status == 422:
        sentence = reply.json["error"]
        assert sentence.endswith(".")
        assert sentence.isprintable()


def test_raw_bytes_in_the_address_are_no_error_of_ours(lab):
    for query in ("%ff%fe=%00", "layers=%31", "&&&", "=", "%", quote("λ=1")):
        assert lab.get(f"/state.json?{query}").status in (200, 422)


@pytest.mark.parametrize("path", [*PARTS, "/lab.json", "/vega.js"])
def test_parts_are_packed_and_known_again(lab, path):
    plain = lab.get(path)
    packed = lab.get(path, headers={"Accept-Encoding": "gzip"})
    assert plain.status == packed.status == 200
    assert gzip.decompress(packed.body) == plain.body
    again = lab.get(path, headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_the_whole_page_is_a_few_hundred_kilobytes(lab):
    sizes = [
        len(lab.get(path, headers={"Accept-Encoding": "gzip"}).body)
        for path in (*PARTS, "/lab.json", "/vega.js")
    ]
    assert sum(sizes) < 400_000


def test_the_page_is_told_every_parameter_and_its_limits(lab):
    told = lab.get("/lab.json").json
    assert told == json.loads(json.dumps(description()))
    assert told["parameters"]["layers"]["most"] == 64
    assert State.read(told["presets"][1]["query"]).mlp == 4


def test_nothing_else_is_served(lab):
    for path in ("/page.html", "/../pyproject.toml", "/_state.py", "/lab.py", "//etc/passwd"):
        assert lab.get(path).status == 404


def test_an_older_request_of_a_page_gives_way_to_its_newer_one(lab):
    slow = "layers=64&tokens=48&width=128&heads=8&skip=1&mlp=4&norm=layer&part=second"
    with ThreadPoolExecutor(1) as threads:
        older = threads.submit(lab.get, f"/state.json?{slow}&session=one")
        server = psutil.Process(lab.process.pid)
        while "ESTABLISHED" not in {each.status for each in server.net_connections("tcp")}:
            time.sleep(0.01)
        began = time.monotonic()
        newer = lab.get(f"/state.json?{SMALL}&session=one")
        seconds = time.monotonic() - began
        assert newer.status == 200
        assert older.result().status == 409
        assert "newer request" in older.result().json["error"]
    assert seconds < 5


def memory(lab):
    """Of the server and all its processes, in bytes that are theirs alone."""
    every = [psutil.Process(lab.process.pid)]
    every += every[0].children(recursive=True)
    return sum(each.memory_full_info().uss for each in every)


def test_fifty_pages_at_once_are_all_answered_and_memory_stays_flat(lab):
    def page(number):
        asked = f"/state.json?{SMALL}&seed={number}&session=page{number}"
        slow = "&skip=1&part=second" if number % 10 == 0 else ""
        return lab.get("/lab.json").status, lab.get(asked).status, lab.get(asked + slow).status

    def pages(count):
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(page, range(count)))

    pages(12)
    before = memory(lab)
    began = time.monotonic()
    assert pages(50) == [(200, 200, 200)] * 50
    assert time.monotonic() - began < 60
    assert memory(lab) - before < 24 * 2**20
    every = psutil.Process(lab.process.pid).children(recursive=True)
    assert len(every) == 3  # the one that is forked, and two workers


def test_a_call_that_fails_after_its_browser_has_gone_is_not_told_to_the_terminal():
    class Slow:
        async def run(self, *_: str) -> bytes:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise CallError(500, "ended meanwhile") from None
            return b""

    class Gone:
        async def receive(self) -> dict[str, str]:
            return {"type": "http.disconnect"}

    told = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        with pytest.raises(CallError):
            await _computed(Slow(), Gone(), "first")
        await asyncio.sleep(0.01)
        gc.collect()

    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may have a loop in this thread
        pool.submit(asyncio.run, ask()).result()
    assert told == []
