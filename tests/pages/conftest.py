"""A small study, its result, its report and its explorer; the browser that opens them."""

import os
import shutil
import time

import pytest

import perfgrid as pg
from perfgrid.cli.main import app
from perfgrid.pictures.pages.explorer import Explorer
from perfgrid.pictures.pages.server import Server

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SIZES = {"desktop": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 844}}
STUDY = """title = "Two models on two devices"
outputs = ["step_time", "memory_per_device", "tokens_per_second", "bubble_fraction"]

[axes]
model = ["llama-2-13b", "llama-2-70b"]
device = ["a100-sxm-80gb", "h100-sxm-80gb"]
topology = ["rail-optimized"]
microbatch = [1, 2, 4]

[axes.parallelism]
devices = [32, 64]
tp = [1, 2, 4, 8]
pp = [1, 2, 4]

[axes.hbm_bandwidth]
scale = [0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

[workload_parameters]
sequence_length = 4096
global_batch = 256

[best]
over = ["parallelism", "microbatch"]
minimize = "step_time"
at = { hbm_bandwidth = 1.0 }
"""


def until(page, condition, arg=None, seconds=20):
    """Wait for a condition, a JavaScript expression or function; the page's own policy forbids to poll within it."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition, arg):
        assert time.monotonic() < end, f"not so after {seconds} s: {condition}"
        page.wait_for_timeout(20)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    found = os.environ.get("PERFGRID_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: install {BROWSERS[0]}, or name one in PERFGRID_BROWSER")  # .ci/run installs it
    return {**browser_type_launch_args, "executable_path": found}


@pytest.fixture(scope="session")
def study_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "small.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="session")
def result(study_file):
    return pg.evaluate(pg.load_study(study_file))


@pytest.fixture(scope="session")
def report_file(study_file):
    path = study_file.with_suffix(".html")
    app(["report", str(study_file), "-o", str(path)], standalone_mode=False)
    return path


@pytest.fixture(scope="session")
def explorer(result):
    """A server of the result, until the tests end."""
    with Server() as server:
        server.explorer.set_result(Explorer(result.copy(), "small.nc"))
        yield server


@pytest.fixture
def opened(browser):
    """Opens a page of a size and a colour scheme; what the page asked for and complained about are lists of it."""
    contexts = []

    def opened(address, size="desktop", scheme="light", **options):
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.complaints = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(address)
        page.wait_for_selector("figure.moving [data-drawn]")
        page.wait_for_selector("main[data-whole]")
        return page

    yield opened
    for context in contexts:
        context.close()
