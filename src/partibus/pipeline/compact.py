"""The job `compact`: the many small files of a capture as few large ones.

Spark's file sink lists the files of a table in ``_spark_metadata``: one log file for each micro-batch, and with every
tenth a *compact* log file, which has all files until then. Readers use the newest compact log file and the later log
files. So an atomic replacement of this one file replaces the files of the table:

```text
 1  write   OUT/.compact/ID/...          what the small files hold, in few files; count the rows of both
 2  note    OUT/.compact/ID.json         the old and the new files
 3  move    OUT/messages/date=.../...    no log file names them yet
 4  swap    _spark_metadata/N.compact    readers see the old files before, and the new ones after
 5  delete  in a later run: the files of a note that no log file names, `Want.keep_s` after it
```

A crash leaves files that no log file names; a later run deletes them. A reader that began before the swap still finds
the old files. A capture that gathers its log at the moment of the swap may undo it; then the old files are still
listed, and stay.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import DataFrame

from partibus.pipeline.capture import CAPTURE, DATE, FATES, GIVE_CAPTURE, MESSAGES, TIME_TYPE
from partibus.pipeline.job import Job, JobError, Values
from partibus.pipeline.place import Place
from partibus.pipeline.report.page import Page, Section, Verdict, counted, number, size, table, text

LOG = "_spark_metadata"
NOTES = ".compact"
_COMPACT = ".compact"
_VERSION = "v1"
_ORDER = {MESSAGES: ("partition_id", "position"), FATES: ("partition_id", "fate_time")}
FEW = 2
"""The least number of small files of a day that are worth being joined."""


class Want(NamedTuple):
    """The request for a compaction."""

    out: str
    """The folder of a capture."""
    file_bytes: int = 128 << 20
    """The size of a large file. Files of half of it and more are left alone."""
    keep_s: float = 3600
    """The time for which replaced files stay, for readers that began before."""


class TableFile(NamedTuple):
    """A file of a table, as Spark's log lists it."""

    name: str
    """Its path below the table's folder: `date=2026-01-31/part-....parquet`."""
    bytes: int
    line: str
    """The line of the log."""

    @property
    def folder(self) -> tuple[str, ...]:
        """The folder of its day; empty where the table is not divided."""
        return tuple(self.name.split("/")[:-1])


def run(job: Job, want: Want) -> Values:
    """Compact both tables of a capture. Raises `JobError`."""
    job.check_paths([want.out], GIVE_CAPTURE)
    place = Place(job.spark, want.out)
    if not place.exists(CAPTURE):
        raise JobError(f"{want.out} holds no capture; {GIVE_CAPTURE}")
    # Spark's default, INT96, has no statistics by which a reader could skip files.
    job.spark.conf.set(TIME_TYPE, "TIMESTAMP_MICROS")
    tables: Values = {}
    for name in (MESSAGES, FATES):
        with job.step(f"compact {name}"):
            tables[name] = _compact(job, want, place, name)
    with job.step("delete replaced files"):
        deleted = 0 if job.options.dry_run else delete_replaced(place, want.keep_s)
    result = {"out": want.out, "tables": tables, "deleted_files": deleted}
    job.finish(result, page=compact_page)
    return result


def _compact(job: Job, want: Want, place: Place, name: str) -> Values:
    listed = files_of(place, name)
    batch = newest_compact(place, name)
    gathered = [] if batch is None else _entries(place, name, f"{batch}{_COMPACT}")
    folders: dict[tuple[str, ...], list[TableFile]] = {}
    for file in gathered:
        if file.bytes < want.file_bytes / 2:
            folders.setdefault(file.folder, []).append(file)
    chosen = {folder: small for folder, small in sorted(folders.items()) if len(small) >= FEW}
    old = [file for small in chosen.values() for file in small]
    done: Values = {
        "files": len(listed),
        "days": sorted({file.folder[0].partition("=")[2] for file in listed if file.folder}),
        "waiting": len(listed) - len(gathered),
        "files_before": len(old),
        "files_after": sum(_count(small, want.file_bytes) for small in chosen.values()),
        "bytes_before": sum(file.bytes for file in old),
        "rows": None,
    }
    if not old or batch is None or job.options.dry_run:
        return done
    run_id = uuid4().hex
    moves: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    rows = 0
    for day, (folder, small) in enumerate(chosen.items()):
        aside = (NOTES, run_id, str(day))
        rows += _join(job, place, name, small, aside, _count(small, want.file_bytes))
        moves += [
            ((*aside, file), (name, *folder, f"compact-{run_id}-{day}-{n}.parquet"))
            for n, file in enumerate(_parquet(place, aside))
        ]
    note = {"table": name, "files": ["/".join(target[1:]) for _, target in moves] + [file.name for file in old]}
    place.write_text((NOTES, f"{run_id}.json"), json.dumps(note))
    for made, target in moves:
        place.move(made, target)
    _swap(place, name, batch, {file.line for file in old}, [target for _, target in moves])
    place.remove(NOTES, run_id)
    return done | {"files_after": len(moves), "rows": rows, "files": len(listed) - len(old) + len(moves)}


def _count(small: Sequence[TableFile], file_bytes: int) -> int:
    return max(1, -(-sum(file.bytes for file in small) // file_bytes))


def _join(
    job: Job, place: Place, name: str, small: Sequence[TableFile], aside: tuple[str, ...], count: int
) -> int:  # fmt: skip
    """Write the rows of files to ``count`` others, and return the number of rows. Raises `JobError`."""
    rows = _read(job, (place.at(name, file.name) for file in small))
    few = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, *_ORDER[name])
    job.watched(lambda: few.sortWithinPartitions(*_ORDER[name]).write.mode("overwrite").parquet(place.at(*aside)))
    before = rows.count()
    after = _read(job, (place.at(*aside, file) for file in _parquet(place, aside))).count()
    if before != after:
        raise JobError(
            f"{place.at(*aside)} has {after:,} rows, and the files that it was made of have {before:,}; nothing was "
            "changed: repeat the command"
        )
    return after


def _read(job: Job, paths: Iterable[str]) -> DataFrame:
    """Read files without the column of their folder. Columns that files of earlier versions lack are null."""
    return job.spark.read.option("mergeSchema", "true").parquet(*paths).drop(DATE)


def _parquet(place: Place, folder: tuple[str, ...]) -> list[str]:
    return sorted(name for name in place.names(*folder) if name.endswith(".parquet"))


def newest_compact(place: Place, name: str) -> int | None:
    """Return the batch of the newest compact log file of a table; None before there is one."""
    found = [one.removesuffix(_COMPACT) for one in place.names(name, LOG) if one.endswith(_COMPACT)]
    return max((int(batch) for batch in found if batch.isdecimal()), default=None)


def files_of(place: Place, name: str) -> list[TableFile]:
    """Return the files of a table that readers see."""
    first = newest_compact(place, name)
    batches = sorted(int(one) for one in place.names(name, LOG) if one.isdecimal())
    logs = [] if first is None else [f"{first}{_COMPACT}"]
    logs += [str(batch) for batch in batches if first is None or batch > first]
    return [file for log in logs for file in _entries(place, name, log)]


def _entries(place: Place, name: str, log: str) -> list[TableFile]:
    """Read one log file. Raises `JobError`."""
    version, *lines = (place.text(name, LOG, log) or "").splitlines() or [""]
    found = [json.loads(line) for line in lines]
    if version != _VERSION or any(one.get("action") != "add" or one.get("isDir") for one in found):
        raise JobError(
            f"{place.at(name, LOG, log)} has the format {version[:20]!r}, and this version of partibus compacts "
            f"{_VERSION} with added files only; nothing was changed: upgrade partibus"
        )
    return [
        TableFile(_below(place, name, one["path"]), one["size"], line) for one, line in zip(found, lines, strict=True)
    ]


def _below(place: Place, name: str, uri: str) -> str:
    """Return the path of a file below its table. Raises `JobError`."""
    folder = place.status(name).getPath().toUri().getPath().rstrip("/")
    head, found, below = unquote(uri).partition(f"{folder}/")
    if not found or not below:
        raise JobError(f"the log of {place.at(name)} lists {head}, which is elsewhere: the folder was moved")
    return below


def _swap(place: Place, name: str, batch: int, old: set[str], new: Sequence[Sequence[str]]) -> None:
    """Replace lines of a compact log file. Raises `JobError` if some are not there, and then changes nothing."""
    log = f"{batch}{_COMPACT}"
    listed = [file.line for file in _entries(place, name, log)]
    if missing := len(old.difference(listed)):
        raise JobError(
            f"{place.at(name, LOG, log)} lacks {missing:,} of the {len(old):,} joined files: another compaction has "
            "replaced them; nothing was changed: repeat the command"
        )
    left = [line for line in listed if line not in old]
    lines = [json.dumps(_entry(place, names), separators=(",", ":")) for names in new]
    # Hadoop's checksum does not fit the new text. Readers look for it only where it is.
    place.remove(name, LOG, f".{log}.crc")
    place.write_text((name, LOG, log), "\n".join([_VERSION, *left, *lines]))


def _entry(place: Place, names: Sequence[str]) -> Mapping[str, Any]:
    status = place.status(*names)
    return {
        "path": status.getPath().toUri().toString(),
        "size": status.getLen(),
        "isDir": False,
        "modificationTime": status.getModificationTime(),
        "blockReplication": int(status.getReplication()),
        "blockSize": status.getBlockSize(),
        "action": "add",
    }


def delete_replaced(place: Place, keep_s: float) -> int:
    """Delete files of old notes that no log file names, and what crashed runs left; return the number of files."""
    in_use = {(name, file.name) for name in (MESSAGES, FATES) for file in files_of(place, name)}
    deleted = 0
    for name in place.names(NOTES):
        if time.time() - place.status(NOTES, name).getModificationTime() / 1000 < keep_s:
            continue
        if name.endswith(".json") and not name.startswith("."):
            note = json.loads(place.text(NOTES, name) or "{}")
            for path in note["files"]:
                names = (note["table"], *path.split("/"))
                if (note["table"], path) not in in_use and place.exists(*names):
                    place.remove(*names)
                    place.remove(*names[:-1], f".{names[-1]}.crc")
                    deleted += 1
        place.remove(NOTES, name)
    return deleted


def compact_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    tables = found["tables"]
    joined = sum(one["files_before"] for one in tables.values())
    after = sum(one["files_after"] for one in tables.values())
    days = sorted({day for one in tables.values() for day in one["days"]})
    waiting = sum(one["waiting"] for one in tables.values())
    dry = joined and all(one["rows"] is None for one in tables.values())
    return Page(
        title="Compaction of a capture",
        lead=f"Small files of {found['out']} as few large ones."
        + (f" From {days[0]} to {days[-1]}." if days else "")
        + (
            f" Spark's log has not gathered {counted(waiting, 'file')} yet: a later run sees them." if waiting else ""
        ),
        verdict=Verdict(None, "DRY RUN", "Nothing was changed.")
        if dry
        else None
        if joined
        else Verdict(None, "NOTHING TO DO", "No day has several small files that Spark's log has gathered."),
        tiles=[
            (number(joined), "small files"),
            (number(after), "files in place of them"),
            (number(found["deleted_files"]), "replaced files deleted"),
        ],
        sections=[
            Section(
                "Tables",
                [
                    table(
                        ["table", "small files", "in place of them", "size before", "rows", "files of the table"],
                        [
                            [
                                text(name), number(one["files_before"]), number(one["files_after"]),
                                size(one["bytes_before"]), "" if one["rows"] is None else number(one["rows"]),
                                number(one["files"]),
                            ]
                            for name, one in tables.items()
                        ],
                        range(1, 6),
                    )
                ],
            )
        ],
    )  # fmt: skip
