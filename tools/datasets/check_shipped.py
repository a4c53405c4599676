#!/usr/bin/env python3
"""Holds the data sets that ship to the rules of the package, and to those for sets that ship.

    python tools/datasets/check_shipped.py                 every set that ships
    python tools/datasets/check_shipped.py textbook FOLDER    these

Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from shipped_rules import SHIPPED_RULES, description_faults

from ragbench.apps.dataset_check import DatasetCheck, Reading, check_reading, dataset_folder, read_dataset
from ragbench.apps.dataset_rules import RULES
from ragbench.base.errors import RagbenchError
from ragbench.ingest.shipped import shipped_datasets


def check_set(folder_or_name: str | Path) -> DatasetCheck:
    """Hold a data set to every rule; raises `ConfigError` only for a name that nobody knows."""
    folder = dataset_folder(folder_or_name)
    reading = read_dataset(folder)
    if not reading.info:
        return check_reading(folder, reading)  # the description cannot be read: that is the fault
    fault_of = dict(description_faults(folder, reading.info))
    dataset = reading.dataset
    if dataset is not None:
        usable = {key: value for key, value in dataset.info.items() if key not in fault_of}
        dataset = replace(dataset, info=usable)
    faults = [*reading.faults, *fault_of.values()]
    return check_reading(folder, Reading(dataset, faults, reading.info), {**RULES, **SHIPPED_RULES})


def main(arguments: list[str]) -> int:
    all_good = True
    for folder_or_name in arguments or sorted(shipped_datasets()):
        try:
            check = check_set(folder_or_name)
        except RagbenchError as e:
            print(e, file=sys.stderr)
            all_good = False
            continue
        print(check)
        all_good = all_good and bool(check)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
