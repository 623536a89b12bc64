"""Datasets from a folder in the place of downloads: each as `datasets.save_to_disk` writes it.

A split that is not there is stood in for only where the rule is plain: the validation set is asked where there is no
test set, and examples come from the questions themselves where there is no train set. Which split was asked stands
beside every score.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spes_peer.evaluating.suite import folders_for

_SPLITS = ("train", "validation", "val", "test", "dev")


class NoData(LookupError):
    """A dataset that does not lie there."""


class LocalData:
    """Stands in for `datasets.load_dataset`; remembers what it gave."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.stood_in: dict[str, str] = {}
        """By dataset and configuration: in words, which split stood in for which."""

    def load(self, path: str, name: str | None = None, **_settings: Any) -> Any:
        """A `DatasetDict`; `NoData` says under which names it was looked for."""
        names = folders_for(path, name)
        found = next((where for one in names if self.folder and (where := self.folder / one).is_dir()), None)
        if found is None:
            raise NoData(f"no folder {names[0]}")
        splits = dict(_splits_in(found))
        if not splits:
            raise NoData(f"no dataset in {found.name}")
        return self._filled(f"{path}/{name}", {split: _with_label(data) for split, data in splits.items()})

    def _filled(self, what: str, splits: dict[str, Any]) -> Any:
        from datasets import DatasetDict

        if "test" not in splits and "validation" in splits:
            splits["test"] = splits["validation"]
            self.stood_in[what] = "validation"
        for split in ("train", "validation"):
            if split not in splits and "test" in splits:
                splits[split] = splits["test"]
        return DatasetDict(splits)


def _splits_in(folder: Path) -> Iterator[tuple[str, Any]]:
    """Of one folder: a dataset, several of them, or a folder for each split."""
    from datasets import Dataset, load_from_disk

    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        loaded = load_from_disk(str(folder))
        if isinstance(loaded, Dataset):
            yield str(loaded.split or "validation"), loaded
        else:
            yield from loaded.items()
        return
    for split in _SPLITS:
        if (folder / split / "state.json").exists():
            yield split, load_from_disk(str(folder / split))


def _with_label(data: Any) -> Any:
    """BoolQ as its authors publish it has the answer as a truth value; the harness reads SuperGLUE's number."""
    columns = data.column_names
    if "label" in columns or "passage" not in columns or "answer" not in columns:
        return data
    return data.add_column("label", [int(answer) for answer in data["answer"]])
