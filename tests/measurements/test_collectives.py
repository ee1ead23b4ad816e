"""Output of nccl-tests: programs, ranks and bandwidths that agree."""

import pytest

from perfgrid import PerfgridError
from tests.each import each

from . import logs
from .given import read

TWO_PROGRAMS = """# all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
268435456 67108864 float sum -1 1000 268.44 503.32 0 1000 1 1 0
# Out of bounds values : 0 OK
# Collective test concluded: all_reduce_perf
# all_gather_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>: 134217728 33554432 float none -1 1000 134.22 125.83 0 1000 1 1 0
67108864 16777216 float none -1 1100 67.11 62.91 0 1000 1 1 0
"""


ONE_NODE = "".join(f"#  Rank {r} Group 0 Pid 9 on n device {r} [0x01] NVIDIA H100 80GB HBM3\n" for r in range(16))


def test_nccl_ranks_that_contradict_the_bandwidths_are_reported(tmp_path):
    about = {"ranks": 8, "device": "NVIDIA H100 80GB HBM3", "sizes": [2**30], "microseconds": [4200], "algbw": [255.7]}
    path = tmp_path / "ar.txt"
    path.write_text(logs.nccl(about | {"busbw": [255.7 * 14 / 8]}, "all_reduce_perf"))
    (found,) = read(path)
    assert (found.value, found.collective.size, found.collective.ranks) == (pytest.approx(4.2e-3), 2**30, 8)
    path.write_text(logs.nccl(about | {"busbw": [255.7 * 30 / 16]}, "all_reduce_perf"))
    with pytest.raises(PerfgridError, match="8 ranks are stated"):
        read(path)


def test_each_table_of_nccl_tests_has_its_own_program(tmp_path):
    path = tmp_path / "both.log"
    path.write_text(TWO_PROGRAMS)
    found = read(path, on="h100-sxm-80gb", stated={"devices": 16})
    assert [(r.collective.op, r.collective.size, r.collective.ranks) for r in found] == [
        ("all_reduce", 268435456, 16),
        ("all_gather", 134217728, 16),
        ("all_gather", 67108864, 16),
    ]
    assert found[2].value == pytest.approx(1.1e-3)
    path.write_text(ONE_NODE + TWO_PROGRAMS)
    assert [r.devices_per_node for r in read(path)] == [16] * 3


@each(
    "text, options, message",
    [
        (
            TWO_PROGRAMS,
            {"collective": "all_reduce"},
            "both.log:7: collective is all_reduce by --set, but .* all_gather",
        ),
        (TWO_PROGRAMS, {"devices": 8}, "both.log:2: 8 ranks are stated, but 268.44 and 503.32 GB/s .* in line 3"),
        (TWO_PROGRAMS.replace("62.91", "58.72"), {}, "67.11 and 58.72 GB/s of all_gather in line 9"),
        (TWO_PROGRAMS.replace("# all_gather_perf\n", ""), {}, "both.log:6: the collective is not stated"),
        (TWO_PROGRAMS.replace("# all_gather", "# alltoall_perf all_gather"), {}, "either of all_gather, all_to_all"),
        (TWO_PROGRAMS.replace("# all_gather", "# gather"), {}, "both.log:7: of the collective of gather_perf"),
        (ONE_NODE + TWO_PROGRAMS, {"devices": 32}, "devices is 32 by --set, but 16 ranks are listed"),
        (
            ONE_NODE.replace("H100 80GB HBM3", "H200") + TWO_PROGRAMS,
            {},
            "device is h200-sxm-141gb by the lines of ranks",
        ),
    ],
)
def test_what_a_table_of_nccl_tests_contradicts_is_reported(tmp_path, text, options, message):
    path = tmp_path / "both.log"
    path.write_text(text)
    with pytest.raises(PerfgridError, match=message):
        read(path, on="h100-sxm-80gb", stated={"devices": 16} | options)
