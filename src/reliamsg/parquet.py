"""Reading of Parquet files that are in memory, in the calling thread alone.

Arrow's threads may still refer to an object of Python's when the interpreter ends. They then ask for the
interpreter's lock to let go of it, and the process dies with SIGABRT after all its work is done
(https://github.com/apache/arrow/issues/34314, https://github.com/apache/arrow/issues/33975). So no thread of
Arrow's ever sees one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__: list[str] = []


class ParquetBytes:
    """A Parquet file, of which nothing but the footer has been read yet.

    Raises :class:`ValueError` if the footer can't be read, and :class:`ImportError` without pyarrow, which the
    extra `audit` installs.
    """

    def __init__(self, data: bytes) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._unreadable = (pa.ArrowException, OSError, KeyError, ValueError)
        try:
            self._file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
            self.metadata: Mapping[bytes, bytes] = dict(self._file.schema_arrow.metadata or {})
            footer = self._file.metadata
            self.unpacked_bytes: Any = sum(
                footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)
            )
            """What its columns take when they are not compressed, according to the footer."""
        except self._unreadable as error:
            raise ValueError(f"it can't be read as Parquet: {error}") from error

    def rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Read these columns, row by row.

        Raises :class:`ValueError` where they are damaged or missing.
        """
        try:
            for batch in self._file.iter_batches(columns=list(columns), use_threads=False):
                yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        except self._unreadable as error:
            raise ValueError(f"it can't be read as Parquet: {error}") from error
