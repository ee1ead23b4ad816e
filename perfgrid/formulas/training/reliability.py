"""Long runs: failures, checkpoints and what part of the time is progress (goodput).

Any device may fail at any time and stops the whole job: it restarts from its last checkpoint. Checkpoints stop the
training while they are written; the interval between them is the best one unless a study states it.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import WORKLOAD, formula
from perfgrid.engine.graph.tables import bind

# ---- equations: checkpoints of length C every T seconds, a failure every M seconds on average, a restart of R --------


def best_interval(checkpoint, between_failures):
    """Time of work between checkpoints that wastes least (Daly 2006, eq. 37): sqrt(2·C·M) for short checkpoints."""
    share = checkpoint / (2 * between_failures)
    root = xp.sqrt(xp.where(share > 0, share, 1.0))
    series = 2 * between_failures * root * (1 + root / 3 + share / 9) - checkpoint
    return xp.where(share < 1, series, between_failures)


def progress(interval, checkpoint, restart, between_failures):
    """Part of the time of a long run that is progress (Daly 2006, eq. 20): T / (M·e^(R/M)·(e^((T+C)/M) - 1))."""
    segment, restarting = (interval + checkpoint) / between_failures, restart / between_failures
    spent = xp.exp(xp.minimum(restarting, 60.0)) * xp.expm1(xp.minimum(segment, 60.0))
    return interval / between_failures / spent


# ---- bindings -------------------------------------------------------------------------------------------------------


@formula(unit="s", source="grattafiori2024llama3", sense="most")
def time_between_failures(devices, device_failure_rate):
    """Mean time between failures that stop the job: any of its devices may cause one."""
    return 1 / (devices * device_failure_rate)


@formula(unit="byte", source="kingma2015adam")
def checkpoint_size(trained_parameters, weight_size, state_size):
    """Bytes of one checkpoint of the whole job: trained weights and optimizer state."""
    return trained_parameters * (weight_size + state_size)


@formula(unit="s", source="grattafiori2024llama3")
def checkpoint_time(checkpoint_size, devices, checkpoint_bandwidth):
    """Time to write one checkpoint, of which every device writes its part, while training stands still."""
    return checkpoint_size / (devices * checkpoint_bandwidth)


@formula(unit="s", source="daly2006")
def expected_training_time(training_time, goodput):
    """Time of the whole training run with checkpoints and failures."""
    return training_time / goodput


@formula(unit="1", source="grattafiori2024llama3")
def expected_failures(expected_training_time, time_between_failures):
    """Failures that the whole training run is to expect."""
    return expected_training_time / time_between_failures


FAILURES, RUN = "checkpoint_time time_between_failures", ("goodput", WORKLOAD, "training")
PROGRESS = "checkpoint_interval checkpoint_time restart_time time_between_failures"
FORMULAS = (
    *bind(best_interval, "checkpoint_interval", FAILURES, "s", "daly2006", where="eq. 37"),
    *bind(progress, "goodput_of_training", PROGRESS, "1", "daly2006", of=RUN, where="eq. 20", sense="most"),
)
