"""What a model has learnt, shown: `python -m spes_peer.training.generate MODEL OPTIONS`, the prompt on standard input.

MODEL is a Hugging Face folder of one of the two kinds that are our decoder. Nothing in it is executed: its config is
compared with what our decoder can do, its tensors are read as numbers, name by name and shape by shape. The text goes
to standard output as it comes. A process of its own, because it takes torch.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from spes_peer.data.spelling import Spelling, showable, spelling_of
from spes_peer.errors import BadConfiguration, NoDevice, SpesError, UserError
from spes_peer.model.decoder import Decoder
from spes_peer.model.huggingface import model_of, tensors_of
from spes_peer.model.huggingface_folder import read_config
from spes_peer.model.writing import Taste, continued
from spes_peer.run.layout import expert_parameters_of, shared_parameters_of
from spes_peer.run.manifest import Model, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.training.adopt import Checkpoint

_LONGEST_CONTEXT = 1 << 20


def load(folder: Path, device: str) -> Decoder:
    """The decoder of a Hugging Face folder; `BadConfiguration` for whatever it cannot be made of."""
    model = model_of(read_config(folder), _LONGEST_CONTEXT)
    checkpoint, tensors = Checkpoint(folder), list(tensors_of(model))
    checkpoint.check(tensors)  # before anything of the size that the config claims is made
    decoder = _empty(model, device)
    for expert in (None, *range(model.num_experts)):
        parameters = shared_parameters_of(model) if expert is None else expert_parameters_of(model)
        num_elements = parameters[-1].offset + parameters[-1].num_elements
        decoder.load_group(expert, checkpoint.group((one for one in tensors if one.expert == expert), num_elements))
    return decoder.eval()


def _empty(model: Model, device: str) -> Decoder:
    try:
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        # losses are not asked for, so that any run's coefficients do
        return Decoder(model, name, parse_run_file(PRESETS["demo"]).training)
    except (RuntimeError, AssertionError) as error:
        raise NoDevice(f"{device or 'this machine'} cannot hold the model: {str(error).splitlines()[0]}") from None


def write(decoder: Decoder, spelling: Spelling, prompt: str, options: argparse.Namespace, end_of_text: int) -> int:
    """Stream the continuation to standard output; how many tokens it has."""
    generator = torch.Generator().manual_seed(options.seed) if options.seed is not None else torch.Generator()
    if options.seed is None:
        generator.seed()
    start = spelling.ids_of(prompt) or [end_of_text]  # behind the end of a text a new one begins
    num_ids = min(spelling.num_ids, decoder.model.vocab_rows)
    if max(start) >= decoder.model.vocab_rows:
        raise BadConfiguration(f"the tokenizer has id {max(start)}, and the model {decoder.model.vocab_rows} rows")
    count = 0
    _show(prompt)
    for token in continued(decoder, start, num_ids, Taste(options.temperature, options.top_p), generator):
        if token == end_of_text or count == options.max_tokens:
            break
        count += 1
        _show(spelling.add(token))
    _show(spelling.rest())
    return count


def _show(text: str) -> None:
    sys.stdout.write(showable(text))
    sys.stdout.flush()


def _end_of_text(config: dict[str, Any]) -> int:
    value = config.get("eos_token_id")
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) and 0 <= value < config["vocab_size"] else 0


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--top-p", type=float, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device", default="")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a text
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    spelling = spelling_of(options.model)
    decoder = load(options.model, options.device)
    write(decoder, spelling, prompt, options, _end_of_text(read_config(options.model)))
    sys.stdout.write("\n")


if __name__ == "__main__":
    try:
        _main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (SpesError, OSError, RuntimeError) as error:
        sys.exit(str(error).splitlines()[0] if str(error) else type(error).__name__)
