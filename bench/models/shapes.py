"""Shapes of data sets: how many rows each table has, how long rows are, and how many ids a sample has of each table."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import DatasetMismatch

#: The 26 categorical features of the Criteo 1 TB click logs, without a cap: GDRec's 900 million ids.
CRITEO_TB = (
    227_605_432, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 130_229_467, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14,
    292_775_614, 40_790_948, 187_188_510, 590_152, 12_973, 108, 36,
)  # fmt: skip
#: These tables with at most 40 million rows each, as MLPerf's DLRM-DCNv2 has them.
CRITEO_MLPERF = tuple(min(rows, 40_000_000) for rows in CRITEO_TB)
#: Ids a sample of each of these tables in MLPerf's DLRM-DCNv2.
MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
#: The 26 categorical features of Criteo's Kaggle contest.
CRITEO_KAGGLE = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992, 5_461_306, 10, 5_652, 2_173, 4,
    7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
#: The features of Avazu's Kaggle contest, without the hour: first the id of the impression, of which there is one a sample. With it there are
#: 22 tables and 50 million ids, as GDRec has them.
AVAZU = (
    40_428_967, 7, 7, 4_737, 7_745, 26, 8_552, 559, 36, 2_686_408, 6_729_486, 8_251, 5, 4, 2_626, 8, 9, 435, 4, 68, 172, 60,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What a model's embeddings look like.

    Parameters
    ----------
    name : str
        What the shape is called.
    rows : tuple of int
        Rows of each table.
    dim : int
        Elements of a row, of each table.
    hot : tuple of int
        Ids of a bag of each table; the rows of a bag are added up.
    dense : int
        Numbers that a sample has besides.
    divisor : int
        By how much the published rows were divided.
    positions : int
        Bags a sample of each table, side by side: a sequence has one for each of its places.
    dtype : str
        Type of elements: "f32", or "f16" where bags have one id.
    prefix : str
        What the names of tables begin with: tables of several models lie in one store.
    """

    name: str
    rows: tuple[int, ...]
    dim: int
    hot: tuple[int, ...]
    dense: int
    divisor: int = 1
    positions: int = 1
    dtype: str = "f32"
    prefix: str = ""

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.hot) or not self.rows:
            raise DatasetMismatch(f"{self.name}: {len(self.rows)} tables and {len(self.hot)} numbers of ids: give one of each a table")
        if min(self.rows) < 1 or min(self.hot) < 1 or self.dim < 1:
            raise DatasetMismatch(f"{self.name}: tables have one row, samples one id of each, rows one element at least")
        if self.dtype not in ("f32", "f16") or (self.dtype == "f16" and max(self.hot) > 1):
            raise DatasetMismatch(f"{self.name}: elements of type {self.dtype}: give f32, or f16 with bags of one id")

    @property
    def names(self) -> list[str]:
        """What the tables are called."""
        return [f"{self.prefix}t{number:02}" for number in range(len(self.rows))]

    @property
    def features(self) -> list[tuple[int, int]]:
        """Of each bag of a sample, in their order, the table and the number of ids."""
        return [(table, hot) for table, hot in enumerate(self.hot) for _ in range(self.positions)]

    @property
    def ids(self) -> int:
        """Ids of a sample."""
        return sum(self.hot) * self.positions

    @property
    def width(self) -> int:
        """Elements of a sample's embeddings, side by side."""
        return len(self.features) * self.dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * (2 if self.dtype == "f16" else 4)

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(self.rows) * self.row_bytes

    def scaled(self, divisor: int) -> Shape:
        """With so many times fewer rows; small tables keep up to 1,000."""
        rows = tuple(max(rows // divisor, min(rows, 1000)) for rows in self.rows)
        return replace(self, rows=rows, divisor=self.divisor * divisor)


def _one_hot(name: str, rows: tuple[int, ...], dim: int, dense: int) -> Shape:
    return Shape(name, rows, dim, (1,) * len(rows), dense)


#: By name. Lengths of rows are those of GDRec's experiments, and of MLPerf's.
SHAPES = {
    "criteo-tb": _one_hot("criteo-tb", CRITEO_TB, 128, 13),
    "criteo-mlperf": Shape("criteo-mlperf", CRITEO_MLPERF, 128, MULTI_HOT, 13),
    "criteo-kaggle": _one_hot("criteo-kaggle", CRITEO_KAGGLE, 32, 13),
    "avazu": _one_hot("avazu", AVAZU, 32, 0),
    "sequence": Shape("sequence", (40_000_000,), 512, (1,), 0, positions=64, dtype="f16"),
    "one-table": _one_hot("one-table", (16_000_000,), 128, 0),
}


def divisor_for(shape: Shape, most_bytes: int) -> int:
    """The smallest divisor with which the rows of a shape take at most so many bytes."""
    low, high = 1, 1
    while shape.scaled(high).bytes > most_bytes:
        if high > max(shape.rows):
            least = shape.scaled(high).bytes
            raise DatasetMismatch(f"{shape.name}: {most_bytes} bytes are too few, the smallest tables take {least}: give more")
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if shape.scaled(middle).bytes > most_bytes:
            low = middle + 1
        else:
            high = middle
    return high
