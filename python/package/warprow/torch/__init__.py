"""Modules that stand in the place of `torch.nn.Embedding` and `torch.nn.EmbeddingBag`, with rows in a store.

>>> model = warprow.torch.replace(model, store)      # the model's embeddings now lie in the store
"""

from ._collection import EmbeddingBagCollection
from ._embedding import Embedding
from ._embedding_bag import EmbeddingBag
from ._ngram_table import NgramTable
from ._prefetched import Prefetched
from ._replace import replace

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingBagCollection", "NgramTable", "Prefetched", "replace"]
