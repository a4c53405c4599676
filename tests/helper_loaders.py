"""Loaders that a worker process can import, for test_own_loaders."""

import os
from pathlib import Path

from ragbench import Document, Refusal, Refused


def load_lines(path, *, doc_id, limits=None):
    "A document a line; a line with an exclamation mark is refused."
    for n, line in enumerate(Path(path).read_text().splitlines(), 1):
        if "!" in line:
            yield Refusal(f"{doc_id}, line {n}", "it shouts")
        else:
            yield Document(f"{doc_id}#{n}", line, metadata={"Rev": n, "process": os.getpid()})


def load_hard(path, *, doc_id):
    "Files whose first word says what happens."
    word = Path(path).read_text().split()[0]
    if word == "hangs":
        while True:
            pass
    if word == "dies":
        os._exit(3)
    if word == "eats":
        return Document(doc_id, "x" * len(bytearray(10**10)))
    if word == "refuses":
        raise Refused("nothing to read", path.name, "Look elsewhere")
    if word == "fails":
        raise KeyError("a mistake")
    return Document(doc_id, {"bytes": b"no text", "good": "good"}.get(word))
