"""Reading segments: every file, what it holds, and whether it can be believed.

A segment is believed when its bytes are those that its name promises, when they are a whole segment of a version that
is known here, and when its name and its directories say the same of it as its header. Of any other no row is used.
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
from reliamsg.files import irregular, what_it_is

__all__ = ["location", "segments"]

_FORMAT, _VERSION = "reliamsg.journal", 1
"""What a segment's header calls itself, and the latest version that is known here."""
_HEADER = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in ("format", "version", "role", "client", "boot")),
        *(T.StructField(name, T.LongType()) for name in ("first_lsn", "last_lsn", "rows")),
        T.StructField("parent", T.StringType()),
        # What only an application's log has.
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
"""What the fields of a row are, in Spark's words."""
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
"""What a segment has in which a field may be something else, or a number too large: Spark reads some such fields as if
they were not there, and others as text. What clients write has it only beside numbers of 19 digits."""
_NO_HEADER = "not a journal segment: its first line is no header"
_OTHER_ROWS = "its rows are not those that its header names"


def segments(spark: SparkSession, journals: str | os.PathLike[str]) -> DataFrame:
    """Every ``*.ndjson`` below a directory or a URL that Spark can read; hidden files are left out.

    Columns: `path`; `name`, without its directories; `digest` of its bytes; `problem`, why it can't be believed, NULL
    where it can; `role`, `client`, `boot`, `first_lsn`, `last_lsn`, `parent` as in its header; `owner_role`,
    `owner_client` as its directories say, NULL where they say none; `lines`, its rows as :data:`schema.LINE`, NULL
    where there is a problem. Logs of applications are left out. A job that uses it more than once had better
    persist it. Raises :class:`FileNotFoundError`. Symbolic links below a local directory are not followed; they, and
    what is no regular file, have a `problem`, and nothing of them is read.
    """
    local = _local(journals)
    where: str | list[str] = location(journals if local is None else local)
    odd: list[tuple[str, str]] = []
    if local is not None:
        odd = [*irregular(local, (".ndjson",))]
        if odd:  # Spark would open them; so it gets the others by name
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
    """Those, and segments of which nothing is left, by their names or directories: Spark passes empty files over."""
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
    """The files that Spark found and does not read, wherever they are: those that are empty."""
    read = {row["path"] for row in files.select("path").collect()}
    # As URIs, whose authority may be empty; the others are Hadoop's paths, which leave it out.
    return sorted({unquote(url).replace(":///", ":/", 1) for url in files.inputFiles()} - read)


def _regular(journals: str | os.PathLike[str]) -> list[str]:
    """The regular files below a local directory that are segments by their names; hidden ones are left out."""
    found = []
    for directory, names, files in os.walk(journals):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        for name in files:
            path = os.path.join(directory, name)
            if (
                name.endswith(".ndjson")
                and not name.startswith((".", "_"))
                and what_it_is(os.lstat(path).st_mode) is None
            ):
                found.append(path)
    return found


def location(path: str | os.PathLike[str]) -> str:
    """A local path as a URL, with nothing in it that Spark would take for a pattern; a URL as it is.

    Raises :class:`FileNotFoundError` for a local path that does not exist.
    """
    text = os.fspath(path)
    if _is_url(path):
        return text
    if not Path(text).exists():
        raise FileNotFoundError(f"{text}: there is no such directory")
    absolute = os.path.abspath(text)  # Path.resolve would follow links, and give other names
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", absolute)


def _local(journals: str | os.PathLike[str]) -> str | None:
    """The path on this machine, also where a URL says it; None for what is elsewhere, or a pattern."""
    text = os.fspath(journals)
    if not _is_url(text):
        return text
    path = unquote(urlsplit(text).path) if text.startswith("file:") else ""
    return path if path and os.path.exists(path) else None


def _is_url(path: str | os.PathLike[str]) -> bool:
    return re.match("[A-Za-z][A-Za-z0-9+.-]+:", os.fspath(path)) is not None


def _parsed(files: DataFrame) -> DataFrame:
    # Bytes are taken for text as they are: what is no UTF-8 has another digest than its name says, or is no JSON.
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
    # A plus sign in a directory's name is one, not a blank.
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
    """Why a file can't be believed; what is said first is what a reader should know first."""
    failure = _failure()
    cut = F.col("is_header") & _known() & ~_damaged() & ~F.col("whole")
    boot, first, digest = (F.regexp_extract("name", _NAME, i) for i in (1, 2, 3))
    # Whatever numbers a file and its name have, they must not end the audit: here an overflow is an exception.
    renamed = (boot != F.col("boot")) | ~F.coalesce(
        first.try_cast("long") == F.col("first_lsn"), F.lit(False)
    )
    foreign = (F.col("owner_role") != F.col("role")) | ~F.col("owner_client").eqNullSafe(F.col("client"))
    return (
        F.when(
            ~F.col("named"),
            F.coalesce(failure, F.lit("its name is not a segment's, so nothing says what its bytes should be")),
        )
        .when(
            digest != F.col("digest"),
            F.when(cut, F.concat(F.lit("cut: it has "), failure)).otherwise(
                "edited or damaged: its bytes are not those that its name promises"
            ),
        )
        .when(failure.isNotNull(), failure)
        .when(renamed, F.lit("renamed: its name and its header are of different boots or rows"))
        .when(
            F.col("owner_role").isNotNull() & foreign,
            F.concat(
                F.lit("foreign: it lies among those of "), "owner_role", F.lit(" "),
                F.coalesce("owner_client", F.lit("?")), F.lit(", and is of "), "role", F.lit(" "), "client",
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
    """Why the bytes are no segment of this version; NULL where they are one."""
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
                F.lit("written by a newer version (form "), F.coalesce("version", F.lit("None")),
                F.lit("): update reliamsg"),
            ),
        )
        .when(_damaged(), F.lit("its header is damaged"))
        .when(
            ~F.col("whole"),
            F.concat(F.col("found").cast("string"), F.lit(" whole rows instead of "), F.col("rows").cast("string")),
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
    """Whether the fields of all rows are what they should be, each once."""

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
