"""Reads and validates segments.

A segment is accepted if its content has the digest in its name, if it is a complete segment of a supported version, and
if its name and directories agree with its header. No row of any other segment is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliamsg.audit.schema import LINE
from reliamsg.files import irregular, special_kind

__all__ = ["location", "segments"]

_FORMAT, _VERSION = "reliamsg.journal", 1
"""The format name in a segment's header, and the latest supported version."""
_HEADER = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in ("format", "version", "role", "client", "boot")),
        *(T.StructField(name, T.LongType()) for name in ("first_lsn", "last_lsn", "rows")),
        T.StructField("parent", T.StringType()),
        # Fields that only occur in logs of applications.
        T.StructField("op", T.StringType()),
    ]
)
_NAME = "^([0-9a-f]{16})-([0-9]{19})-([0-9a-f]{64})\\.ndjson$"
_OWNER = "(?:^|/)role=(producer|group)/client=([^/]+)/"
_REQUIRED = ("lsn", "boot", "kind", "wall_us", "wall_last_us", "mono_us")
_NUMBERS = "^[0-9a-f]{1,16}$"
_LONGS = ("lsn", "wall_us", "wall_last_us", "mono_us", "epoch", "first", "last")
_STRINGS = ("boot", "kind", "producer", "topic", "incarnation", "site", "group", "reason")
_TYPES = {
    **dict.fromkeys((*_LONGS, "part"), "BIGINT"),
    **dict.fromkeys(_STRINGS, "STRING"),
    "digest": "STRING|VOID",
    "latency": "OBJECT<(`?-?[0-9]+`?: BIGINT(, )?)*>|VOID",
    "detail": "OBJECT<.*>|VOID",
}
"""The fields of a row, as a Spark schema."""
_ODD = (
    '"(?:'
    + "|".join(
        (
            f'(?:{"|".join(_LONGS)})"\\s*+:(?!-?+[0-9]{{1,18}}+[,}}])',
            r'part"\s*+:(?!-?+[0-9]{1,9}+[,}])',
            f'(?:{"|".join((*_STRINGS, "digest"))})"\\s*+:(?!")',
            r'latency"\s*+:(?!\{(?:"[0-9]++":[0-9]{1,18}+,?+)*+\})',
            r'detail"\s*+:(?!\{)',
        )
    )
    + ")"
)
"""Matches segments in which a field may have another type, or a number may be too large: Spark reads some such fields
as missing and others as text. Segments of clients only match with numbers of 19 digits."""
_NO_HEADER = "not a journal segment: the first line is not a header"
_OTHER_ROWS = "its rows do not match its header"


def segments(spark: SparkSession, journals: str | os.PathLike[str]) -> DataFrame:
    """All ``*.ndjson`` files below a directory or a URL that Spark can read, without hidden files.

    Columns: `path`; `name`, without directories; `digest` of the content; `problem`, why it is not accepted, or NULL;
    `role`, `client`, `boot`, `first_lsn`, `last_lsn`, `parent` from the header; `owner_role`, `owner_client` from the
    directories, or NULL; `lines`, the rows as :data:`schema.LINE`, NULL if there is a problem. Logs of applications are
    omitted. A caller that uses the frame more than once should persist it. Raises :class:`FileNotFoundError`. Symbolic
    links below a local directory are not followed; they and other files that are not regular have a `problem`, and are
    not read.
    """
    local = _local(journals)
    where: str | list[str] = location(journals if local is None else local)
    odd: list[tuple[str, str]] = []
    if local is not None:
        odd = [*irregular(local, (".ndjson",))]
        if odd:  # Spark would open them, so list the other files
            where = [location(path) for path in _regular(local)]
    try:
        files = (
            spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.ndjson")
            .load(where)
            if where
            else spark.createDataFrame([], "path string, content binary")
        )
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in (error.getCondition() or ""):
            raise FileNotFoundError(f"{os.fspath(journals)}: there are no such journals") from None
        raise
    files = _with_empty(
        files.select("path", "content"), spark, _passed_over(files) if local is None else _empty(local)
    )
    found = _checked(_parsed(files))
    if not odd:
        return found
    rows = [
        {
            "path": os.path.abspath(path),
            "name": os.path.basename(path),
            "digest": "",
            "problem": f"not a file: {what}",
        }
        for path, what in odd
    ]
    return found.unionByName(spark.createDataFrame(rows, found.schema))


def _with_empty(files: DataFrame, spark: SparkSession, empty_files: Iterable[str]) -> DataFrame:
    """Add empty segments, by their names or directories: Spark ignores empty files."""
    empty = [
        (path, b"")
        for path in empty_files
        if re.match(_NAME, path.rpartition("/")[2]) or re.search(_OWNER, path)
    ]
    return files.unionByName(spark.createDataFrame(empty, "path string, content binary")) if empty else files


def _empty(directory: str) -> Iterator[str]:
    for path in _regular(directory):
        if os.path.getsize(path) == 0:
            yield f"file:{os.path.abspath(path)}"


def _passed_over(files: DataFrame) -> list[str]:
    """The files that Spark found but does not read, because they are empty."""
    read = {row["path"] for row in files.select("path").collect()}
    # As URIs, which may have an empty authority; the others are Hadoop paths, which omit it.
    return sorted({unquote(url).replace(":///", ":/", 1) for url in files.inputFiles()} - read)


def _regular(journals: str | os.PathLike[str]) -> list[str]:
    """The regular files below a local directory with names of segments, without hidden ones."""
    found = []
    for directory, names, files in os.walk(journals):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        for name in files:
            path = os.path.join(directory, name)
            if (
                name.endswith(".ndjson")
                and not name.startswith((".", "_"))
                and special_kind(os.lstat(path).st_mode) is None
            ):
                found.append(path)
    return found


def location(path: str | os.PathLike[str]) -> str:
    """A local path as a URL without patterns of Spark; a URL unchanged.

    Raises :class:`FileNotFoundError` for a local path that does not exist.
    """
    text = os.fspath(path)
    if _is_url(path):
        return text
    if not Path(text).exists():
        raise FileNotFoundError(f"{text}: there is no such directory")
    absolute = os.path.abspath(text)  # Path.resolve would follow links and change names
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", absolute)


def _local(journals: str | os.PathLike[str]) -> str | None:
    """The path on this machine of a path or URL; None for remote URLs and patterns."""
    text = os.fspath(journals)
    if not _is_url(text):
        return text
    path = unquote(urlsplit(text).path) if text.startswith("file:") else ""
    return path if path and os.path.exists(path) else None


def _is_url(path: str | os.PathLike[str]) -> bool:
    return re.match("[A-Za-z][A-Za-z0-9+.-]+:", os.fspath(path)) is not None


def _parsed(files: DataFrame) -> DataFrame:
    # Bytes are read as text without validation: invalid UTF-8 has a different digest than its name, or is not JSON.
    text = F.col("content").cast("string")
    shown = F.regexp_replace("path", "^file:/+", "/")
    name = F.element_at(F.split(shown, "/"), -1)
    read = files.select(
        shown.alias("path"),
        name.alias("name"),
        F.sha2("content", 256).alias("digest"),
        F.split(text, "\n", -1).alias("text"),
        (text.rlike(_ODD) | F.contains(text, F.lit("\\u"))).alias("odd"),
    ).select("*", F.from_json(F.element_at("text", 1), _HEADER).alias("header"))
    whole = _whole() & (F.col("header.rows") > 0)
    joined = F.concat(
        F.lit("["),
        F.array_join(F.slice("text", 2, F.when(whole, F.col("header.rows")).otherwise(0).cast("int")), ","),
        F.lit("]"),
    )
    return read.select(
        "path",
        "name",
        "digest",
        "header",
        _whole().alias("whole"),
        (F.element_at("text", -1) == "").alias("ended"),
        F.greatest(F.size("text") - 2, F.lit(0)).alias("found"),
        F.when(whole, F.from_json(joined, T.ArrayType(LINE))).alias("lines"),
        F.when(whole & F.col("odd"), _is_typed("text", F.col("header.rows"))).alias("typed"),
    )


def _whole() -> Column:
    return F.coalesce(
        (F.element_at("text", -1) == "") & (F.size("text") - 2 == F.col("header.rows")), F.lit(False)
    )


def _checked(parsed: DataFrame) -> DataFrame:
    header = F.col("header")
    is_header = F.coalesce(header["format"] == _FORMAT, F.lit(False))
    owner = F.regexp_extract("path", _OWNER, 1)
    # A plus sign in a directory's name does not stand for a blank.
    client = F.try_url_decode(F.regexp_replace(F.regexp_extract("path", _OWNER, 2), "\\+", "%2B"))
    named = F.col("name").rlike(_NAME)
    flat = parsed.select(
        "path",
        "name",
        "digest",
        named.alias("named"),
        F.when(owner != "", owner).alias("owner_role"),
        F.when(owner != "", client).alias("owner_client"),
        is_header.alias("is_header"),
        (F.coalesce(header["op"] != "", F.lit(False)) | ~F.col("ended")).alias("is_log"),
        *(
            header[name].alias(name)
            for name in ("version", "role", "client", "boot", "first_lsn", "last_lsn", "rows", "parent")
        ),
        "whole",
        "found",
        "lines",
        "typed",
    )
    claims = F.col("named") | F.col("owner_role").isNotNull() | F.col("is_header")
    problem = F.when(~claims, F.lit("neither a journal's segment nor an application's log")).otherwise(
        _problem()
    )
    judged = flat.where(claims | ~F.col("is_log")).withColumn("problem", problem)
    sound = F.col("problem").isNull()
    return judged.select(
        "path", "name", "digest", "problem", "role", "client", "boot", "first_lsn", "last_lsn", "parent",
        "owner_role", "owner_client", F.when(sound, F.col("lines")).alias("lines"),
    )  # fmt: skip


def _problem() -> Column:
    """Why a file is not accepted; the most important reason comes first."""
    failure = _failure()
    cut = F.col("is_header") & _known() & ~_damaged() & ~F.col("whole")
    boot, first, digest = (F.regexp_extract("name", _NAME, i) for i in (1, 2, 3))
    # Numbers in a file and its name must not make the audit fail: in this session an overflow is an exception.
    renamed = (boot != F.col("boot")) | ~F.coalesce(
        first.try_cast("long") == F.col("first_lsn"), F.lit(False)
    )
    foreign = (F.col("owner_role") != F.col("role")) | ~F.col("owner_client").eqNullSafe(F.col("client"))
    return (
        F.when(
            ~F.col("named"),
            F.coalesce(failure, F.lit("its name is not that of a segment, so its content can't be verified")),
        )
        .when(
            digest != F.col("digest"),
            F.when(cut, F.concat(F.lit("cut: it has "), failure)).otherwise(
                "edited or damaged: its content does not match the hash in its name"
            ),
        )
        .when(failure.isNotNull(), failure)
        .when(renamed, F.lit("renamed: its name and its header name different boots or rows"))
        .when(
            F.col("owner_role").isNotNull() & foreign,
            F.concat(
                F.lit("misplaced: it is among those of "), "owner_role", F.lit(" "),
                F.coalesce("owner_client", F.lit("?")), F.lit(", but belongs to "), "role", F.lit(" "), "client",
            ),
        )
    )  # fmt: skip


def _known() -> Column:
    numeric = F.coalesce(F.col("version").rlike("^-?[0-9]{1,9}$"), F.lit(False))
    return F.when(numeric, F.col("version").cast("int") <= _VERSION).otherwise(F.lit(False))


def _damaged() -> Column:
    lacks = F.lit(False)
    for name in ("role", "client", "boot", "first_lsn", "last_lsn", "rows"):
        lacks |= F.col(name).isNull()
    return lacks | ~F.coalesce(F.col("role").isin("producer", "group"), F.lit(False))


def _failure() -> Column:
    """Why the content is not a segment of a supported version; NULL if it is."""
    unreadable = F.exists(
        "lines",
        lambda line: (
            _any_null(line)
            | ~F.coalesce(line["incarnation"].rlike(_NUMBERS), F.lit(True))
            | ~F.coalesce(line["digest"].rlike(_NUMBERS), F.lit(True))
        ),
    )
    as_named = F.forall(
        F.transform(
            "lines",
            lambda line, i: (
                (F.try_subtract(line["lsn"], i) == F.col("first_lsn")) & (line["boot"] == F.col("boot"))
            ),
        ),
        lambda each: each,
    )
    span = F.try_add(F.try_subtract("last_lsn", "first_lsn"), F.lit(1))
    return (
        F.when(~F.col("is_header"), F.lit(_NO_HEADER))
        .when(
            ~_known(),
            F.concat(
                F.lit("written by a newer version (format "), F.coalesce("version", F.lit("None")),
                F.lit("): upgrade reliamsg"),
            ),
        )
        .when(_damaged(), F.lit("its header is damaged"))
        .when(
            ~F.col("whole"),
            F.concat(F.col("found").cast("string"), F.lit(" complete rows instead of "), F.col("rows").cast("string")),
        )
        .when(
            ~F.coalesce(span == F.col("rows"), F.lit(False)) | (F.col("rows") < 1), F.lit(_OTHER_ROWS)
        )
        .when(
            F.col("lines").isNull()
            | (F.size("lines") != F.col("rows"))
            | F.coalesce(unreadable, F.lit(True))
            | ~F.coalesce("typed", F.lit(True)),
            F.lit("a row can't be read"),
        )
        .when(~F.coalesce(as_named, F.lit(False)), F.lit(_OTHER_ROWS))
    )  # fmt: skip


def _is_typed(text: str, rows: Column) -> Column:
    """Whether all rows have valid fields, each once."""

    def is_sound(line: Column) -> Column:
        row, found = F.try_parse_json(line), F.lit(True)
        for name, kind in _TYPES.items():
            its = F.schema_of_variant(F.try_variant_get(row, f"$.{name}", "variant"))
            found &= F.coalesce(its.rlike(f"^({kind})$"), row.isNotNull())
        part = F.try_variant_get(row, "$.part", "bigint")
        return found & F.coalesce(part.between(-(2**31), 2**31 - 1), F.lit(True))

    return F.forall(F.slice(text, 2, rows.cast("int")), is_sound)


def _any_null(line: Column) -> Column:
    found = F.lit(False)
    for name in _REQUIRED:
        found |= line[name].isNull()
    return found
