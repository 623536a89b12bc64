"""The process that evaluates: `python -m spes_peer.evaluating MODEL ORDER.json RESULTS.json`.

It loads the harness, transformers and torch, and reaches for the network only if it was told to. No code of a model's
folder is run, and of weights only safetensors are read. Its last line on stderr says what was wrong.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration, ending_in_a_line


def _main(folder: Path, order: dict[str, Any], out: Path) -> None:
    if not order["online"]:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "LMEVAL_LOG_LEVEL": "ERROR"}
    warnings.simplefilter("ignore")
    if not any(folder.glob("*.safetensors")):
        raise BadConfiguration(f"{folder} has no safetensors; weights of other kinds are not read")
    from spes_peer.evaluating import harness
    from spes_peer.evaluating.local_data import LocalData
    from spes_peer.evaluating.suite import entries
    from spes_peer.evaluating.table import as_json

    logging.disable(logging.WARNING)
    data = LocalData(Path(order["data"]) if order["data"] else None)
    found, missing = harness.find(entries(order["tasks"]), data, order["online"])
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise BadConfiguration(f"no task has data in {order['data'] or 'reach'} ({reasons}); see --data and --online")
    print(f"evaluating {', '.join(one.entry.title for one in found)}", flush=True)
    scores, refused, facts = harness.measure(folder, found, order["limit"], order["batch"], order["device"])
    if not scores:
        raise BadConfiguration("; ".join(f"{name} was not run: {why}" for name, why in (missing | refused).items()))
    results = {"version": 1, "model": order["model"], "scores": as_json(scores), "not_run": missing | refused, **facts}
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    try:
        with ending_in_a_line():
            _main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
    except Exception as error:  # the harness and what it stands on have no errors of their own
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        sys.exit(f"the model cannot be evaluated: {first[:300]}")
