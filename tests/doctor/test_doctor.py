"""The doctor: a line for each check, what to do where something is wrong, an exit code."""

import resource
import socket

import pytest

from course_lib.doctor import __main__ as doctor
from course_lib.doctor import checks, chromium, facts
from course_lib.doctor.checks import Finding

CONTAINER = {"cpu.max": "150000 100000\n", "memory.max": f"{2 * 2**30}\n", "memory.current": f"{2**30}\n"}


@pytest.fixture
def container(tmp_path):
    for name, text in CONTAINER.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_this_machine_is_examined_a_line_each(capsys):
    doctor.main()
    lines = capsys.readouterr().out.splitlines()
    findings = [line for line in lines if line.split(" ")[0] in ("ok", "warn", "fail")]
    assert len(findings) == len(checks.CHECKS)
    assert lines[-1].startswith("The labs will")


VERDICTS = [("ok", 0, "run here."), ("warn", 0, "better"), ("fail", 1, "will not run")]


@pytest.mark.parametrize("level, code, verdict", VERDICTS)
def test_the_exit_code_and_the_last_line_follow_the_worst_finding(capsys, level, code, verdict):
    assert doctor.main([lambda: Finding(level, "it", "do this")]) == code
    out = capsys.readouterr().out
    assert verdict in out.splitlines()[-1]
    assert ("      do this." in out.splitlines()) == (level != "ok")


def test_a_check_that_stumbles_does_not_stop_the_others(capsys):
    def broken():
        raise RuntimeError("driver gone")

    assert doctor.main([broken, lambda: Finding("ok", "the next")]) == 0
    out = capsys.readouterr().out
    assert "warn  broken: RuntimeError: driver gone" in out and "ok    the next" in out


def test_a_container_has_what_it_is_allowed(container, monkeypatch):
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert facts.cores(container) == 2
    total, free = facts.memory(container)
    assert total == 2 * 2**30 and free <= 2**30


def test_no_limit_means_the_machine(container, monkeypatch):
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    for name in ("cpu.max", "memory.max"):
        (container / name).write_text("max 100000\n", encoding="utf-8")
    assert facts.cores(container) == 16
    assert facts.memory(container)[0] > 0
    assert facts.cores(container / "nowhere") == 16


@pytest.mark.parametrize("total, free, level", [(16, 8, "ok"), (16, 2, "warn"), (2, 1, "fail")])
def test_memory(monkeypatch, total, free, level):
    monkeypatch.setattr(facts, "memory", lambda: (total * 2**30, free * 2**30))
    assert checks.memory().level == level


def test_too_many_threads_per_rank_are_noticed(monkeypatch):
    monkeypatch.setattr(facts, "cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert checks.cores().level == "warn"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert checks.cores().level == "ok"


def test_few_open_files_are_noticed(monkeypatch):
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, 4096))
    finding = checks.open_files()
    assert finding.level == "warn" and "ulimit -n 1024" in finding.todo
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert checks.open_files().level == "ok"


def test_names_that_do_not_resolve_are_noticed(monkeypatch):
    def nothing(_):
        raise socket.gaierror("no such host")

    monkeypatch.setattr(checks.socket, "gethostbyname", nothing)
    assert checks.host_name().level == "warn"
    assert checks.loopback().level == "fail"


def test_a_machine_without_loopback_ports_fails(monkeypatch):
    def refuse(_):
        raise PermissionError("not here")

    monkeypatch.setattr(checks.socket, "create_server", refuse)
    assert checks.port().level == "fail"


def test_variables_that_change_how_ranks_connect_are_shown(monkeypatch):
    for name in [name for name in checks.os.environ if name.startswith(("NCCL_", "GLOO_", "TORCH_"))]:
        monkeypatch.delenv(name)
    assert checks.variables().level == "ok"
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    finding = checks.variables()
    assert finding.level == "warn" and "NCCL_P2P_DISABLE=1" in finding.text


def test_a_gpu_that_torch_does_not_see_is_noticed(monkeypatch):
    monkeypatch.setattr(facts, "gpus", list)
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert checks.gpus().level == "warn"
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    assert checks.gpus().level == "ok"
    monkeypatch.setattr(facts, "gpus", lambda: ["H200 (140 GiB)"])
    assert "H200" in checks.gpus().text


def test_chromium_is_installed_only_by_one_who_may_and_only_when_missing(monkeypatch):
    asked = []
    monkeypatch.setattr(chromium.subprocess, "run", lambda command, **_: asked.append(command) or Done())
    monkeypatch.setattr(chromium.shutil, "which", lambda name: None if "chrom" in name else f"/usr/bin/{name}")
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 1000)
    assert chromium.find_or_install() is None and asked == []
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 0)
    chromium.find_or_install()
    assert asked[-1][:2] == ["apt-get", "install"]
    asked.clear()
    monkeypatch.setattr(chromium.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert chromium.find_or_install() == "/usr/bin/chromium" and asked == []


class Done:
    returncode = 0
