"""The model as the harness asks it, which says what does not fit into its window. Only the process that runs the
harness imports this."""

from pathlib import Path
from typing import Any

from lm_eval.models.huggingface import HFLM


class CannotBeAsked(Exception):
    """An answer of a task is longer than the model's window."""


class Model(HFLM):  # type: ignore[misc]  # the harness has no types
    """On a GPU where no device is named and there is one."""

    def __init__(self, folder: Path, device: str | None, batch: int) -> None:
        super().__init__(
            pretrained=str(folder),
            device=device or "",  # the harness chooses where there is no name
            batch_size=batch,
            trust_remote_code=False,
            use_safetensors=True,
        )
        self.num_asked = 0
        self.num_cut = 0
        """Of those asked, answers whose question lost its begin to the window."""

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **settings: Any) -> Any:
        """`requests` are (texts, tokens of the question, tokens of the answer)."""
        longest = max((len(answer) for _, _, answer in requests), default=0)
        if longest > self.max_length:
            raise CannotBeAsked(f"an answer has {longest} tokens, and the model sees {self.max_length} at a time")
        self.num_asked += len(requests)
        self.num_cut += sum(len(question) + len(answer) > self.max_length + 1 for _, question, answer in requests)
        return super()._loglikelihood_tokens(requests, *args, **settings)
