"""Tests of the free memory of the host and of the control groups of Slurm and containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpcfwi.system import free_on_host, peak_resident_bytes, say_free

GB = 10**9
STEP = "system.slice/slurmstepd.scope/job_7/step_0"
V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"
UNLIMITED_V1 = 9223372036854771712


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def host(root: Path, groups: str) -> Path:
    """Write the files of a host with 64 GB free memory and a process in these control groups."""
    meminfo = f"MemTotal: 99 kB\nMemAvailable:   {64 * GB // 1024} kB"
    return write(root, {"proc/meminfo": meminfo, "proc/self/cgroup": groups})


def group_v2(path: str, limit: object, used: int, cache: int = 0) -> dict[str, object]:
    return {
        f"{V2}/{path}/memory.max": limit,
        f"{V2}/{path}/memory.current": used,
        f"{V2}/{path}/memory.stat": f"anon 5\ninactive_file {cache}",
    }


def group_v1(path: str, limit: object, used: int, cache: int = 0) -> dict[str, object]:
    return {
        f"{V1}/{path}/memory.limit_in_bytes": limit,
        f"{V1}/{path}/memory.usage_in_bytes": used,
        f"{V1}/{path}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}",
    }


def test_free_memory_without_control_groups_is_that_of_the_kernel(tmp_path: Path) -> None:
    (host(tmp_path, "") / "proc/self/cgroup").unlink()
    assert free_on_host(tmp_path) == 64 * GB


def test_limit_of_a_parent_control_group_is_applied(tmp_path: Path) -> None:
    host(tmp_path, f"0::/{STEP}/user/task_3")
    write(tmp_path, group_v2(f"{STEP}/user/task_3", "max", 1 * GB))
    write(tmp_path, group_v2(STEP, 30 * GB, 3 * GB))
    write(tmp_path, group_v2("system.slice/slurmstepd.scope/job_7", 8 * GB, 3 * GB))
    assert free_on_host(tmp_path) == 5 * GB


def test_file_cache_of_a_control_group_counts_as_free(tmp_path: Path) -> None:
    host(tmp_path, f"0::/{STEP}")
    write(tmp_path, group_v2(STEP, 8 * GB, 7 * GB, cache=4 * GB))
    assert free_on_host(tmp_path) == 5 * GB


def test_limit_of_a_version_1_control_group_of_slurm_is_applied(tmp_path: Path) -> None:
    host(tmp_path, "9:name=systemd:/x\n4:cpu,memory:/slurm/uid_5/job_7/step_0/task_1\n0::/")
    write(tmp_path, group_v1("slurm/uid_5/job_7/step_0/task_1", UNLIMITED_V1, 2 * GB))
    write(tmp_path, group_v1("slurm/uid_5/job_7", 12 * GB, 2 * GB, cache=1 * GB))
    assert free_on_host(tmp_path) == 11 * GB


@pytest.mark.parametrize("groups", ["0::/", "0::/../..", "4:memory:/docker/0123abcd"])
def test_limit_of_a_container_is_read_at_the_root(groups: str, tmp_path: Path) -> None:
    host(tmp_path, groups)
    write(tmp_path, (group_v1 if "memory" in groups else group_v2)("", 4 * GB, 1 * GB))
    assert free_on_host(tmp_path) == 3 * GB


def test_message_names_the_control_group_with_the_least_free_memory(tmp_path: Path) -> None:
    host(tmp_path, f"0::/{STEP}")
    assert say_free(tmp_path) == "64 GB are free of the 101 kB of this host"
    write(tmp_path, group_v2(STEP, 30 * GB, 3 * GB))
    write(tmp_path, group_v2("system.slice/slurmstepd.scope/job_7", 8 * GB, 3 * GB))
    told = "5 GB are free of the 8 GB of control group /system.slice/slurmstepd.scope/job_7"
    assert say_free(tmp_path) == told
    write(tmp_path, group_v2("", 2 * GB, 1 * GB))
    assert say_free(tmp_path) == "1 GB are free of the 2 GB of the control group"


def test_limit_above_the_memory_of_the_host_has_no_effect(tmp_path: Path) -> None:
    host(tmp_path, f"0::/{STEP}")
    write(tmp_path, group_v2(STEP, 500 * GB, 0))
    assert free_on_host(tmp_path) == 64 * GB


def test_free_memory_of_a_group_beyond_its_limit_is_zero(tmp_path: Path) -> None:
    host(tmp_path, f"0::/{STEP}")
    write(tmp_path, group_v2(STEP, 8 * GB, 9 * GB))
    assert free_on_host(tmp_path) == 0


def test_peak_memory_of_a_process_excludes_that_of_its_parent() -> None:
    ours = torch.ones(150_000_000)
    code = "from hpcfwi.system import peak_resident_bytes; print(peak_resident_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < peak_resident_bytes() - 0.3 * ours.nbytes
