"""What was made, as the manifest's `[data]`, or why it is not enough."""

import numpy as np

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing import encoders
from spes_peer.data.preparing.documents import TROUBLES
from spes_peer.data.preparing.order import Order, shard_tokens
from spes_peer.data.preparing.source_work import Finished
from spes_peer.data.preparing.sources import as_written, shares
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import Data, Shard, Shards, Source, TokenDtype, Tokenizer
from spes_peer.run.manifest import Model, validated


def data_of(
    order: Order, tokenizer: Tokenizer, finished: list[Finished], blobs: BlobStore, model: Model | None
) -> Data:
    length = model.sequence_length if model is not None else 1
    for recipe, one in zip(order.recipe.source, finished, strict=True):
        if one.num_tokens <= length:
            raise BadConfiguration(_too_short(recipe.name, one, length))
    held_out = _held_out(finished, encoders.dtype_of(tokenizer))
    if held_out.size <= length:
        raise BadConfiguration(
            f"the held-out split has {held_out.size} tokens of whole documents, and one sequence needs {length + 1}: at"
            " most a tenth of a source is held out, and only documents of less than 512 KiB; prepare more text, or cut"
            " plain text smaller with --documents paragraph"
        )
    sizes = [one.num_tokens for one in finished]
    ratios = shares(order.recipe, sizes)
    sources = [
        Source(
            name=recipe.name,
            ratio=as_written(ratio),
            licence=recipe.licence,
            shards=Shards(num_tokens=one.num_tokens, shard_tokens=shard_tokens(order), index=blobs.put(one.index).name),
        )
        for recipe, one, ratio in zip(order.recipe.source, finished, ratios, strict=True)
    ]
    raw = {
        "tokenizer": tokenizer,
        "token_dtype": encoders.dtype_of(tokenizer),
        "sources": sources,
        "held_out": Shard(blob=blobs.put(held_out.tobytes()).name, num_tokens=held_out.size),
        "licence": order.recipe.licence,
    }
    return validated(Data, raw, "data")


def _held_out(finished: list[Finished], dtype: TokenDtype) -> encoders.TokenIds:
    documents = [document for one in finished for document in one.held_out.documents()]
    row = np.concatenate([np.empty(0, dtype), *(document.tokens for document in documents)])
    return row.astype(np.dtype(dtype).newbyteorder("<"))


def _too_short(name: str, one: Finished, length: int) -> str:
    met = [f"{one.counts[kind]} {words}" for kind, words in TROUBLES.items() if one.counts[kind]]
    why = f" ({'; '.join(met)})" if met else ""
    return f"the source {name} has {one.num_tokens} tokens to train on, and one sequence needs {length + 1}{why}"
