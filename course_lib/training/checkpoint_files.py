"""A checkpoint's files, as one process sees them: written, committed, verified, removed. See `checkpoint.py` for why.

What is relied on: a file that was flushed with fsync is on the disk; a rename happens at once or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

MANIFEST = "manifest.json"
LATEST = "latest"
OURS = re.compile(r"(state|rank-\d+)\.[0-9a-f]{8}\.pt|manifest\.json(\.aside)?")  # no other file is ever removed


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or read. Those saved before are untouched."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint is not what was saved: which file, what was expected and found, and which step is whole."""


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def begin(place: Path) -> str:
    """Make the folder of a step. Returns a name for this save's files, which no other has."""
    place.mkdir(parents=True, exist_ok=True)
    return secrets.token_hex(4)


class Hashing:
    """A file that counts and hashes what is written, on its way to the disk: damage after that is noticed."""

    def __init__(self, file: Any) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()
        self.error: OSError | None = None  # torch.save reports a full disk as a RuntimeError about positions

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write(place: Path, part: str, token: str, value: Any) -> dict[str, Any]:
    """Write one file and flush it to the disk. Returns its entry in the manifest."""
    path = place / f"{part}.{token}.pt"
    with open(path, "wb") as file:
        hashing = Hashing(file)
        try:
            torch.save(value, hashing)
        except RuntimeError as error:
            raise hashing.error or error from None
        file.flush()
        os.fsync(file.fileno())
    readable(path, part)
    return {"part": part, "name": path.name, "bytes": hashing.size, "sha256": hashing.digest.hexdigest()}


def readable(path: Path, part: str) -> None:
    """Refuse, while there is still something to save, what `weights_only` would refuse when it is needed."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # mapped: tensors are not read
    except Exception as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"a {named[1]}" if named else f"something else ({type(error).__name__})"
        raise CheckpointError(
            f"{part} holds {what}: only tensors, numbers, strings, lists, tuples and dicts can be loaded without code."
        ) from error


def commit(folder: Path, step: int, written: list[list[dict[str, Any]]]) -> None:
    """Make the checkpoint exist: its manifest, renamed into place once all files are on the disk."""
    place = folder / name_of(step)
    files = {entry.pop("part"): entry for entries in written for entry in entries}
    unseen = [entry["name"] for entry in files.values() if not (place / entry["name"]).exists()]
    if unseen:
        raise CheckpointError(f"Rank 0 does not see {unseen[0]} in {place}: take a folder that all nodes share.")
    serial = 1 + max((manifest["serial"] for manifest in saved(folder).values()), default=0)
    body = {"step": step, "serial": serial, "ranks": len(written), "files": files}
    text = json.dumps({"sha256": hash_of(body), "body": body}, indent=1)
    replace(place / MANIFEST, text)
    flush_folder(folder)


def hash_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def replace(path: Path, text: str) -> None:
    """Write a small file so that at any moment there is the old one or the new one, whole."""
    aside = path.with_name(path.name + ".aside")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        flush_folder(path.parent)  # the names of the files beside it come first
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Renames and new names are on the disk once their folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def latest(folder: str | Path) -> int | None:
    """The step that was saved last, None where none was. Steps may go back: then it is not the highest.

    The manifests decide, since a kill can leave the file `latest` one behind. But where that file names a checkpoint
    whose manifest is lost or unreadable, it is that one: damage is to be told, not passed over.
    """
    folder = Path(folder)
    found = saved(folder)
    pointed = pointed_at(folder)
    if pointed is not None and pointed not in found and (folder / name_of(pointed)).is_dir():
        return pointed
    return max(found, key=lambda step: found[step]["serial"], default=None)


def choose(folder: Path, step: int | None) -> tuple[int | None, list[int]]:
    """The step to load, None if there is none, and the steps there are. Sets `latest` right where a kill left it."""
    found = latest(folder) if step is None else step
    if found is None or not (folder / name_of(found)).is_dir():
        return None, sorted(saved(folder))
    if step is None and pointed_at(folder) != found:
        with contextlib.suppress(OSError):  # a folder that can only be read
            point_at(folder, found)
    return found, sorted(saved(folder))


def saved(folder: Path) -> dict[int, dict[str, Any]]:
    """The manifest of each step that has one."""
    steps = {}
    for place in folder.glob("step-*"):
        manifest = read_manifest(place)
        if manifest is not None and place.name == name_of(manifest["step"]):
            steps[manifest["step"]] = manifest
    return steps


def read_manifest(place: Path) -> dict[str, Any] | None:
    """None where there is none, or none that can be trusted."""
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
        return manifest["body"] if manifest["sha256"] == hash_of(manifest["body"]) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def files_of(place: Path) -> set[str]:
    manifest = read_manifest(place)
    return set() if manifest is None else {MANIFEST, *(entry["name"] for entry in manifest["files"].values())}


def verify(folder: Path, step: int, parts: Iterable[str]) -> None:
    """Raise DamagedCheckpoint unless the files of these parts are what was saved. A part that was not saved is fine."""
    damage = damage_in(folder / name_of(step), parts)
    if damage:
        whole = [other for other in saved(folder) if other != step and not damage_in(folder / name_of(other))]
        advice = f"whole are the steps {sorted(whole)}" if whole else "no other checkpoint in the folder is whole"
        raise DamagedCheckpoint(f"The checkpoint of step {step} is damaged: {damage}; {advice}.")


def damage_in(place: Path, parts: Iterable[str] | None = None) -> str:
    """What is wrong with these parts of a checkpoint (None: all), in words. Empty if nothing is."""
    manifest = read_manifest(place)
    if manifest is None:
        path = place / MANIFEST
        return f"{path} is not what was saved" if path.exists() else f"{path} is missing"
    for part in manifest["files"] if parts is None else parts:
        entry = manifest["files"].get(part)
        if entry is None:
            continue
        path = place / entry["name"]
        if not path.exists():
            return f"{path}, {entry['bytes']:,} bytes, is missing"
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path} has {size:,} bytes, {entry['bytes']:,} were saved"
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry["sha256"]:
            return f"{path} has the SHA-256 {digest[:12]}..., saved was {entry['sha256'][:12]}..."
    return ""


def read(place: Path, part: str) -> Any:
    """What was saved as this part, None if nothing was."""
    entry = read_manifest(place)["files"].get(part)
    return entry and torch.load(place / entry["name"], map_location="cpu", weights_only=True)


def tidy(folder: Path, step: int, keep: int) -> None:
    """After a save: let `latest` name it, then remove what is older than the last `keep`, and what kills left behind.

    Failing here loses nothing, and the next save does it all again.
    """
    with contextlib.suppress(OSError):
        point_at(folder, step)
        found = saved(folder)
        kept = sorted(found, key=lambda each: found[each]["serial"])[-keep:]
        for place in folder.glob("step-*"):
            unreadable = (place / MANIFEST).exists() and read_manifest(place) is None
            if not unreadable:  # someone may still want to look into it
                needed = files_of(place) if place.name in map(name_of, kept) else set()
                remove(place, lambda name, needed=needed: name not in needed)


def discard(place: Path, token: str) -> None:
    """Remove the files of a save that failed."""
    needed = files_of(place)
    remove(place, lambda name: token != "" and f".{token}." in name and name not in needed)


def remove(place: Path, which: Callable[[str], bool]) -> None:
    """Remove those of our own files from a step's folder, and the folder if it is then empty."""
    names = [path.name for path in place.glob("*") if OURS.fullmatch(path.name) and which(path.name)]
    for name in sorted(names, key=lambda name: name != MANIFEST):  # first the manifest: then it exists no more
        (place / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place.rmdir()


def point_at(folder: Path, step: int) -> None:
    replace(folder / LATEST, name_of(step) + "\n")


def pointed_at(folder: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((folder / LATEST).read_text(encoding="utf-8").strip().removeprefix("step-"))
    return None
