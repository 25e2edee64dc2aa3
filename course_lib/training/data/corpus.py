"""Real text without a download: the running Python's own standard library, or any text files of the reader's."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

# Packages installed beside the library; tests, which some systems ship and others leave out; `encodings`, which is
# tables of character codes and no text; and modules that are written when Python is built, with that machine's paths.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
BUILT = ("_sysconfigdata", "python-config")


def corpus(path: str | Path | None = None) -> list[str]:
    """The documents to learn from: the text of each file. Files without text are left out.

    path: a text file, or a folder of them; its folders are taken too, names that begin with a dot are not. None: the
    .py files of the running Python's standard library, some 13 MB. The order depends on the files' names alone: a
    folder's own files, sorted, then its folders, sorted. Text is UTF-8, and all of it is held in memory.

    Raises FileNotFoundError where nothing is at `path`, and ValueError where a file is no text or none has any.
    """
    root = Path(sysconfig.get_path("stdlib") if path is None else path)
    if not root.exists():
        raise FileNotFoundError(f"There is no file and no folder {root}: name a text file, or a folder of text files.")
    if path is None:
        files = [f for f in walk(root, NOT_LIBRARY) if f.suffix == ".py" and not f.name.startswith(BUILT)]
    else:
        files = [root] if root.is_file() else list(walk(root))
    documents = read_all(files)
    if not documents:
        raise ValueError(f"There is no text in {root}: {len(files)} files, all empty. Name files that have some.")
    return documents


def walk(root: Path, skip: Container[str] = ()) -> Iterator[Path]:
    """The files of a folder, sorted, then those of its folders. Folders named in `skip` are not entered."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in skip)
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def read_all(files: Sequence[Path]) -> list[str]:
    """The text of each file that has any. All are read before one is refused, so that the reader hears of every one."""
    documents, refused = [], []
    for file in files:
        try:
            text = text_of(file)
        except (ValueError, OSError) as reason:
            refused.append(str(reason))
            continue
        if text.strip():
            documents.append(text)
    if refused:
        others = f" (the first of {len(refused)} such files among {len(files)})" if len(refused) > 1 else ""
        raise ValueError(f"{refused[0]}{others}: save it as UTF-8 text, or leave it out.")
    return documents


def text_of(file: Path) -> str:
    """A file's text, line ends as they are. Raises ValueError where it is no UTF-8 text: which byte, and where."""
    raw = file.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{raw[error.start]:02x} at {error.start:,} of {len(raw):,}"
        raise ValueError(f"{file} is no UTF-8 text, {where}") from None
    if "\0" in text:
        raise ValueError(f"{file} is no text, it has a zero byte at {raw.index(0):,} of {len(raw):,}")
    return text


def split(documents: Sequence[str], fraction: float = 0.05) -> tuple[list[str], list[str]]:
    """(training, validation): whole documents, about `fraction` of the characters for validation.

    Which ones is decided by the hash of each text, not by its place. So a document stays on its side when others come
    or go, and two copies of one text are never on both. Documents too long for what is left of the share are passed
    over. Where there is one text only, it is cut in two.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation is {fraction} of the corpus: it must be more than 0 and less than 1.")
    wanted = fraction * sum(map(len, documents))
    if len(set(documents)) == 1:
        return cut(documents[0], fraction)
    held_out: set[str] = set()
    taken = 0
    copies = Counter(documents)
    in_order_of_hash = sorted(copies, key=lambda text: hashlib.sha256(text.encode()).digest())
    for text in in_order_of_hash:
        size = copies[text] * len(text)
        if taken + size <= wanted:
            held_out.add(text)
            taken += size
    if not held_out:
        held_out = {min(in_order_of_hash, key=len)}
    training = [text for text in documents if text not in held_out]
    return training, [text for text in documents if text in held_out]


def cut(text: str, fraction: float) -> tuple[list[str], list[str]]:
    """The last `fraction` of one text for validation; up to twice that, to begin with a line."""
    at = int(len(text) * (1 - fraction))
    share = len(text) - at
    at = text.rfind("\n", max(at - share, 0), at) + 1 or at
    return [text[:at]], [text[at:]]
