"""Modules that stand in the place of `torch.nn.Embedding` and `torch.nn.EmbeddingBag`, with rows in a store.

>>> model = warprow.torch.replace(model, store)      # the model's embeddings now lie in the store
"""

from ._collection import EmbeddingBagCollection
from ._embedding import Embedding
from ._embedding_bag import EmbeddingBag
from ._fixed_sizes import FixedSizeBags
from ._ngram_ids import NgramIds
from ._ngram_table import NgramTable
from ._prefetched import Prefetched
from ._replace import replace
from ._shard_plan import Placement, ShardingPlan, plan_sharding, shard_of
from ._sharded import ShardedEmbeddingBagCollection

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "FixedSizeBags",
    "NgramIds",
    "NgramTable",
    "Placement",
    "Prefetched",
    "ShardedEmbeddingBagCollection",
    "ShardingPlan",
    "plan_sharding",
    "replace",
    "shard_of",
]
