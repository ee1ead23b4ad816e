"""Who evaluates the tiles: this process, processes beside it, or the workers of a dask cluster.

An executor takes the numbers of tiles and yields an entry for each that is durable, in any order. Only numbers go out
and only entries come back; a worker that dies loses what it had not finished, and that is done again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.grid.plan import Plan

from .journal import Entry
from .worker import Task, Worker, work

DEATHS = 4  # of workers in a row, without a tile in between, after which something else is wrong
CONNECT_SECONDS = 20  # for a scheduler to answer
WORKER_SECONDS = 120  # for its first worker to come


def serial(
    task: Task, numbers: Collection[int], plan: Plan | None = None, progress: Progress | None = None
) -> Iterator[Entry]:
    """This process: one tile is written while the next is evaluated."""
    worker = Worker(task, plan, progress)
    with ThreadPoolExecutor(1) as pool:
        writing: Future[Entry] | None = None
        for number in numbers:
            made = worker.evaluate(number)
            if writing is not None:
                yield writing.result()
            writing = pool.submit(worker.write, *made)
            del made
        if writing is not None:
            yield writing.result()


def processes(task: Task, numbers: Collection[int], workers: int) -> Iterator[Entry]:
    """Processes of this machine, started afresh (never forked: JAX has threads). They listen nowhere."""
    left, deaths = dict.fromkeys(numbers), 0
    while left:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _beside) as pool:
            try:
                for entry in _windowed(lambda n: pool.submit(work, task, n), left, 2 * workers):
                    del left[entry.tile]
                    deaths = 0
                    yield entry
            except BrokenProcessPool:
                deaths += 1
                if deaths >= DEATHS:
                    raise PerfgridError(
                        f"{deaths} times in a row a worker process died before it finished a tile; "
                        "is memory short? fewer --workers or less --memory take less"
                    ) from None
            finally:
                pool.shutdown(cancel_futures=True)


def _windowed(submit: Callable[[int], Future[Entry]], numbers: Iterable[int], most: int) -> Iterator[Entry]:
    """Results as they come, with at most so many tasks waiting."""
    rest, waiting = iter(list(numbers)), set[Future[Entry]]()
    while True:
        while len(waiting) < most and (number := next(rest, None)) is not None:
            waiting.add(submit(number))
        if not waiting:
            return
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _beside() -> None:
    """In a new worker process: end with the process that started it, whatever becomes of that; leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def connected(scheduler: str | None) -> Iterator[Any]:
    """A client of a dask scheduler that has a worker, closed at the end; None without a scheduler.

    PerfgridError where none answers.
    """
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise PerfgridError("--scheduler needs dask: pip install 'perfgrid[distributed]'") from None
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise PerfgridError(f"no dask scheduler answers at {scheduler!r}: {_first_line(error)}") from None
    with _unlogged("distributed"), client:
        try:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError:
            raise PerfgridError(f"no worker came to the dask scheduler at {scheduler!r}") from None
        yield client


def cluster(task: Task, numbers: Collection[int], client: Any, scheduler: str) -> Iterator[Entry]:
    """The workers of a dask scheduler; they see the store on the same file system. Nothing here listens."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    rest, deaths, tile_of = iter(list(numbers)), 0, dict[Any, int]()
    queue = as_completed(loop=client.loop)

    def submit(number: int) -> None:
        future = client.submit(work, task, number, pure=False)
        tile_of[future.key] = number
        queue.add(future)

    def top_up() -> None:
        """Two tiles for every thread there is now: workers come and go."""
        held: Any = client.nthreads()
        while len(tile_of) < 2 * max(1, sum(held.values())) and (number := next(rest, None)) is not None:
            submit(number)

    top_up()
    for future in queue:
        number = tile_of.pop(future.key)
        try:
            entry = future.result()
        except KilledWorker:
            deaths += 1
            if deaths >= DEATHS:
                sentence = f"workers of {scheduler!r} die before they finish a tile; is memory short?"
                raise PerfgridError(sentence) from None
            submit(number)
            continue
        except PerfgridError:
            raise
        except (Exception, CancelledError) as error:  # the scheduler is gone, a worker failed
            raise PerfgridError(f"the run at {scheduler!r} broke off: {_first_line(error)}") from error
        deaths = 0
        yield entry
        top_up()


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Without the log of a library whose errors are raised, and said in one line."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
