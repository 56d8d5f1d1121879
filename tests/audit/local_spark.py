"""As much of Spark's interface as the audit's job uses, in this process: an audit without output takes milliseconds.

It promises what Spark does and no more: partitions are read anew wherever nothing is persisted, and their order, and
that of their records unless sorted, is random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from pyspark.sql import SparkSession

__all__ = ["local_spark"]

_Partition = Callable[[], Iterator[Any]]


class _Broadcast:
    def __init__(self, value: Any) -> None:
        self.value = value


class _Context:
    defaultParallelism = 2

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def broadcast(self, value: Any) -> _Broadcast:
        return _Broadcast(value)

    def parallelize(self, values: Sequence[Any], partitions: int) -> _Rdd:
        parts = [list(values[start::partitions]) for start in range(partitions)]
        return _Rdd(self, [lambda own=own: iter(own) for own in parts])  # type: ignore[misc]


class _Rdd:
    def __init__(self, context: _Context, partitions: Sequence[_Partition]) -> None:
        self.context = context
        self._partitions = list(partitions)
        context.dice.shuffle(self._partitions)

    def getNumPartitions(self) -> int:
        return len(self._partitions)

    def persist(self, _: object) -> _Rdd:
        known = [list(each()) for each in self._partitions]
        self._partitions = [lambda own=own: iter(own) for own in known]  # type: ignore[misc]
        return self

    def unpersist(self) -> None:
        self._partitions = []

    def mapPartitions(self, function: Callable[[Iterable[Any]], Iterable[Any]]) -> _Rdd:
        return _Rdd(
            self.context,
            [lambda own=own: iter(function(own())) for own in self._partitions],  # type: ignore[misc]
        )

    def filter(self, function: Callable[[Any], bool]) -> _Rdd:
        return self.mapPartitions(lambda own: (each for each in own if function(each)))

    def union(self, other: _Rdd) -> _Rdd:
        return _Rdd(self.context, [*self._partitions, *other._partitions])

    def coalesce(self, partitions: int) -> _Rdd:
        every = [self._partitions[start::partitions] for start in range(partitions)]
        return _Rdd(
            self.context,
            [lambda own=own: (each for part in own for each in part()) for own in every],  # type: ignore[misc]
        )

    def repartitionAndSortWithinPartitions(self, partitions: int, function: Callable[[Any], int]) -> _Rdd:
        def one(number: int) -> Iterator[Any]:
            return iter(sorted(each for each in self.collect() if function(each[0]) % partitions == number))

        return _Rdd(self.context, [lambda number=number: one(number) for number in range(partitions)])  # type: ignore[misc]

    def collect(self) -> list[Any]:
        return [each for part in self._partitions for each in part()]

    def sum(self) -> Any:
        return sum(self.collect())


class _Session:
    def __init__(self, seed: int) -> None:
        self.sparkContext = _Context(random.Random(seed))


def local_spark(seed: int) -> SparkSession:
    """A session whose partitions are shuffled by this seed."""
    return cast(SparkSession, _Session(seed))
