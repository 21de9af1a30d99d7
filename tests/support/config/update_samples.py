"""Write the results of `config import` into `tests/data/formats/*/expected.toml` and `tests/data/trainer_cases.toml`.

Run it after a change of a message, and read the diff: every changed line is a change that users see.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import tomlkit

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.config.format_samples import DATA, READ, Sample, samples
from support.config.trainer_cases import CASES, FILE, Case, result

from unified_clip import ClipConfig, ConfigError

RESULTS = ("settings", "notes", "error")


def main() -> None:
    warnings.simplefilter("ignore")
    for trainer in READ.values():
        update(DATA / trainer.name / "expected.toml", "sample", list(map(of_sample, samples(trainer))))
    update(FILE, "case", list(map(of_case, CASES)))


def of_case(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return result(case, Path(folder))


def of_sample(sample: Sample) -> dict[str, Any]:
    try:
        config = ClipConfig.import_from(sample.path, sample.from_)
    except ConfigError as error:
        return {"error": str(error)}
    settings = config.data()
    notes = settings.pop("provenance").get("notes")
    return {"settings": settings, "notes": notes} if notes else {"settings": settings}


def update(path: Path, name: str, results: list[dict[str, Any]]) -> None:
    if not path.exists():
        sys.exit(f"{path} is missing. Write a table [[sample]] for each file, as in the folders beside it.")
    file = tomlkit.parse(path.read_text(encoding="utf-8"))
    tables: Any = file[name]
    for table, new in zip(tables, results, strict=True):
        for key in RESULTS:
            if key not in new:
                table.pop(key, None)
            elif table.get(key) != new[key]:
                table[key] = _inline(new[key])
    path.write_text(tomlkit.dumps(file), encoding="utf-8")


def _inline(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


if __name__ == "__main__":
    main()
