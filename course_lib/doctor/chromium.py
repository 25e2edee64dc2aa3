"""Where the Chromium for the browser tests is; and its installation, on Debian, by someone who may."""

from __future__ import annotations

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The path of an installed Chromium, None when there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def may_install() -> bool:
    """True for root on a system with apt-get."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def find_or_install() -> str | None:
    """The path of Chromium, installed from Debian's packages when it is missing and may be. None: it cannot be had."""
    if find() or not may_install():
        return find()
    print("No Chromium here: installing Debian's.", flush=True)
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
    if subprocess.run(["apt-get", "update"], **quiet).returncode == 0:
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", "chromium"], **quiet)
    return find()
