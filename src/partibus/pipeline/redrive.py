"""The job `redrive`: the choice of dead letters, and their changes on the way back.

The functions take DataFrames with the columns of the data source. Expressions are Spark SQL over these columns, and
over ``text``, the body as UTF-8.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from partibus.client.errors import AccessDenied, ClientError, CursorLost, NotFound
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.ranges import COMPLETED_MAX, RangeClient, open_ranges
from partibus.client.sync import connect
from partibus.pipeline.job import Job, JobError, Values
from partibus.pipeline.place import Place
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    moment,
    number,
    paragraph,
    range_of_times,
    table,
    text,
    whole,
)
from partibus.pipeline.sending import Sending, check_target, forget, sent
from partibus.spark.lease import Lease
from partibus.spark.option_table import DEAD_LETTER_QUEUE
from partibus.spark.options import Options
from partibus.spark.sink_options import SinkOptions
from partibus.spark.sink_rows import sink_key
from partibus.spark.sink_values import ADDRESS, SINK_TYPES

PROPERTY = "property."
DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
"""Properties that would be wrong on a message that has left the dead-letter queue."""
TRAIL = (
    "sequence_number", "enqueued_time", "delivery_count", "dead_letter_reason", "dead_letter_error_description",
    "session_id", "partition_key", "subject", "original_message_id",
)  # fmt: skip
"""Columns of the audit trail, beside a message's address and its target."""
_BODY_TEXT = "text"
_SHOWN = 200
"""Characters of a body in a sample."""


class Change(NamedTuple):
    """A change: ``--set COLUMN=EXPRESSION``, or of one application property ``property.NAME=EXPRESSION``."""

    column: str
    expression: str

    @classmethod
    def parse(cls, text: str) -> "Change":
        """Parse a change. Raises `JobError`."""
        column, equals, expression = text.partition("=")
        column, expression = column.strip(), expression.strip()
        settable = [name for name in SINK_TYPES if name not in ADDRESS]
        if not equals or not expression or not column:
            raise JobError(f"--set {text!r} is not of the form COLUMN=EXPRESSION or property.NAME=EXPRESSION")
        if not (column in settable or (column.startswith(PROPERTY) and column != PROPERTY)):
            raise JobError(f"--set {text!r} sets {column!r}; it may be property.NAME or {', '.join(settable)}")
        return cls(column, expression)


def active(rows: DataFrame) -> DataFrame:
    """Select the dead letters that no receiver has deferred."""
    return rows.where(sf.col("state") == "active").withColumn(_BODY_TEXT, sf.col("body").cast("string"))


def matching(rows: DataFrame, where: str | None) -> DataFrame:
    """Select the rows of `active` for which the expression holds. Raises `JobError` naming it."""
    if where is None:
        return rows
    try:
        found = rows.where(sf.expr(where))
        _ = found.schema
    except (AnalysisException, ParseException) as error:
        raise _wrong("--where", where, error) from None
    return found


def changed(rows: DataFrame, changes: Sequence[Change], *, new_ids: bool = False) -> DataFrame:
    """Return the messages to send for these rows. Every expression sees the original message. Raises `JobError`."""
    values: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for change in changes:
        try:
            value = sf.expr(change.expression)
            found = rows.select(value.alias("value")).schema["value"].dataType.simpleString()
        except (AnalysisException, ParseException) as error:
            raise _wrong(f"--set {change.column}", change.expression, error) from None
        if change.column.startswith(PROPERTY):
            properties[change.column.removeprefix(PROPERTY)] = value.cast("string")
            continue
        types = SINK_TYPES[change.column]
        if found == "void":
            value = value.cast(types[0])
        elif found not in types:
            raise JobError(f"--set {change.column}: {change.expression!r} is {found}; it must be {' or '.join(types)}")
        values[change.column] = value
    values.setdefault("scheduled_enqueue_time", sf.lit(None).cast("timestamp"))
    values["original_message_id"] = sf.col("message_id")
    if new_ids:
        values["message_id"] = sf.lit(None).cast("string")
    if "application_properties" not in values:
        values |= _with_properties(properties)
    elif properties:
        raise JobError("--set application_properties sets all of them; leave out it, or --set property.NAME")
    return rows.withColumns(values)


def by_reason(rows: DataFrame) -> list[Values]:
    """Count messages by the reason of their dead-lettering, most first, with the times of the oldest and newest."""
    reason = sf.coalesce("dead_letter_reason", sf.lit("")).alias("reason")
    ends = (
        sf.min("enqueued_time").cast("double").alias("oldest"),
        sf.max("enqueued_time").cast("double").alias("newest"),
    )
    counted = rows.groupBy(reason).agg(sf.count("*").alias("messages"), *ends)
    return [row.asDict() for row in counted.orderBy(sf.desc("messages"), "reason").collect()]


def samples(rows: DataFrame, most: int) -> list[Values]:
    """Return samples of `active` rows with the columns that a person wants to see."""
    shown = rows.select(
        "partition_id", "position", "message_id", "dead_letter_reason", "dead_letter_error_description",
        sf.col("application_properties").alias("properties"), sf.substring(_BODY_TEXT, 1, _SHOWN).alias("body"),
    ).limit(most)  # fmt: skip
    return [row.asDict(recursive=True) for row in shown.collect()]


def _with_properties(properties: Mapping[str, Any]) -> Values:
    gone = sf.array(*(sf.lit(name) for name in (*DEAD_LETTER_PROPERTIES, *properties)))
    values = {
        name: sf.map_filter(name, lambda key, _: ~sf.array_contains(gone, key))
        for name in ("application_properties", "application_property_types")
    }
    if properties:
        pairs = [part for name, value in properties.items() for part in (sf.lit(name), value)]
        empty = sf.create_map().cast("map<string,string>")
        kept = sf.coalesce(values["application_properties"], empty)
        values["application_properties"] = sf.map_concat(kept, sf.create_map(*pairs))
    return values


def _wrong(option: str, expression: str, error: AnalysisException | ParseException) -> JobError:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return JobError(f"{option} {expression!r} is no expression over the columns of a message: {said}")


STATE = "redrive.json"
_KEY = list(ADDRESS)


class Want(NamedTuple):
    """The request for a redrive."""

    connection: str
    entity: str
    """A queue, a subscription, or a topic: all of its subscriptions."""
    out: str | None
    """The directory of the job; None: a dry run, which leaves no file."""
    to: str | None = None
    """The target; None: the source queue, or the topic of a subscription."""
    where: str | None = None
    changes: Sequence[Change] = ()
    rate: float | None = None
    new_ids: bool = False
    lease_ms: int = 60_000
    revoke_locks: bool = False
    samples_max: int = 5


class Source(NamedTuple):
    """One dead-letter queue."""

    entity: str
    to: str

    @property
    def dead_letters(self) -> str:
        """The path of the dead-letter queue."""
        return f"{self.entity}/{DEAD_LETTER_QUEUE}"


class Held(NamedTuple):
    """The hold on dead letters while no other receiver gets them."""

    client: RangeClient
    cursor: str
    epochs: Mapping[int, int]


def run(job: Job, want: Want) -> Values:
    """Redrive, or report what a redrive would do."""
    with job.step("look"):
        sources = _sources(want)
        for target in dict.fromkeys(source.to for source in sources):
            check_target(want.connection, target, new_ids=want.new_ids)
    is_dry = job.options.dry_run
    told = [_look(job, want, source) for source in sources] if is_dry else _redrive_all(job, want, sources)
    result: Values = {
        "dead_letters": sum(one["dead_letters"] for one in told),
        "matched": sum(one["matched"] for one in told),
        "sent": sum(one["sent"] for one in told),
        "sources": told,
    }
    job.finish(result, page=redrive_page)
    return result


def _redrive_all(job: Job, want: Want, sources: Sequence[Source]) -> list[Values]:
    assert want.out is not None, "the audit trail goes somewhere"
    place = Place(job.spark, want.out)
    asked = {
        "entity": want.entity,
        "to": want.to,
        "where": want.where,
        "set": [f"{change.column}={change.expression}" for change in want.changes],
        "new_ids": want.new_ids,
    }
    state = place.read(STATE)
    if state is not None and state["status"] != "done":
        if state["asked"] != asked:
            raise JobError(
                f"a redrive with the audit trail {want.out} was interrupted: ask for it again as it was "
                f"({_spelled(state['asked'])}), so that it is brought to its end, or use another directory"
            )
    else:
        name = state["name"] if state is not None else uuid4().hex[:8]
        state = {"name": name, "run": uuid4().hex, "asked": asked, "status": "running", "since": datetime.now(UTC),
                 "steps": {}}  # fmt: skip
        place.write(STATE, state)
    told = [_redrive(job, want, place, state, source) for source in sources]
    state |= {"status": "done", "until": datetime.now(UTC)}
    place.write(STATE, state)
    place.remove("work")
    return told


def _redrive(job: Job, want: Want, place: Place, state: Values, source: Source) -> Values:
    """Redrive one dead-letter queue, from the step on at which an earlier attempt ended."""
    folder = f"source={source.entity.replace('/', '~')}"
    work, audit = ("work", f"run={state['run']}", folder), ("audit", f"run={state['run']}", folder)
    steps: dict[str, str] = state["steps"]
    sending = Sending(
        SinkOptions.parse({"connection": want.connection, "entity": source.to}),
        sink_key("redrive", f"{state['run']}/{source.entity}"),
        want.rate,
    )
    resumed = source.entity in steps
    if steps.get(source.entity) != "done":
        with _alone(want, source, f"redrive-{state['name']}") as held:
            if source.entity not in steps:
                with job.step(f"choose {source.entity}"):
                    chosen = matching(_dead_letters(job, want, source), want.where)
                    staged = changed(chosen, want.changes, new_ids=want.new_ids)
                    job.watched(lambda: staged.write.mode("overwrite").parquet(place.at(*work)))
                _note(place, state, source, "staged")
            if steps[source.entity] == "staged":
                with job.step(f"send {source.entity}"):
                    rows = job.spark.read.parquet(place.at(*work))
                    there = _dead_letters(job, want, source, slim=True).select(*_KEY)
                    lines = _trail(sent(rows.join(there, _KEY, "left_semi"), sending), rows, source)
                    job.watched(lambda: lines.write.mode("overwrite").parquet(place.at(*audit)))
                _note(place, state, source, "sent")
            with job.step(f"complete {source.entity}"):
                _complete(job.spark.read.parquet(place.at(*audit)), held)
        _note(place, state, source, "done")
        forget(sending)
    lines = job.spark.read.parquet(place.at(*audit))
    count = lines.count()
    left = _count(want, source)
    return {
        "entity": source.entity, "to": source.to, "dead_letters": left + count, "matched": count, "sent": count,
        "left": left, "repeated": lines.where("repeated").count(), "resumed": resumed,
        "reasons": by_reason(lines), "samples": [], "audit": place.at(*audit),
    }  # fmt: skip


def _look(job: Job, want: Want, source: Source) -> Values:
    """Report what a run would do. It changes nothing, and blocks no receiver."""
    with job.step(f"look at {source.entity}"):
        rows = _dead_letters(job, want, source)
        chosen = matching(rows, want.where)
        _ = changed(chosen, want.changes, new_ids=want.new_ids)
        count, reasons = _count(want, source), job.watched(lambda: by_reason(chosen))
        matched = sum(one["messages"] for one in reasons)
        return {
            "entity": source.entity, "to": source.to, "dead_letters": count, "matched": matched, "sent": 0,
            "left": count - matched, "repeated": 0, "resumed": False, "reasons": reasons,
            "samples": samples(chosen, want.samples_max), "audit": None,
        }  # fmt: skip


def _trail(lines: DataFrame, rows: DataFrame, source: Source) -> DataFrame:
    """Add the columns of the audit trail to lines."""
    from pyspark.sql import functions as sf

    told = lines.join(rows.select(*_KEY, *TRAIL), _KEY)
    return told.withColumn("sent_from", sf.lit(source.dead_letters))


def _complete(lines: DataFrame, held: Held) -> None:
    """Complete the messages by requests of some thousand positions of each partition."""
    chosen: dict[int, list[int]] = {}
    for row in lines.select("partition_id", "position").orderBy("partition_id", "position").toLocalIterator():
        positions = chosen.setdefault(row.partition_id, [])
        positions.append(row.position)
        if len(positions) == COMPLETED_MAX:
            held.client.complete(held.cursor, chosen, held.epochs)
            chosen = {}
    if chosen:
        held.client.complete(held.cursor, chosen, held.epochs)


@contextmanager
def _alone(want: Want, source: Source, cursor: str) -> Iterator[Held]:
    """Read the dead letters exclusively, so that no other receiver gets a message that is being sent.

    Raises `JobError`.
    """
    options = Options.parse(
        {
            "connection": want.connection, "entity": source.dead_letters, "mode": "consume", "cursor": cursor,
            "leaseMs": str(want.lease_ms), "revokeLocks": str(want.revoke_locks).lower(),
        }
    )  # fmt: skip
    lease = Lease(options, open_ranges)
    try:
        client = open_ranges(want.connection, source.dead_letters)
        try:
            states = lease.take(client, {})
            yield Held(client, cursor, {partition_id: state.epoch for partition_id, state in states.items()})
            lease.end()
            client.close_cursor(cursor, drop=True)
        finally:
            lease.end()
            client.close()
    except CursorLost as error:
        raise JobError(
            f"the dead letters of {source.entity!r} are no longer read exclusively ({error}): run it again to "
            "continue; a longer --lease bears longer pauses of this machine"
        ) from error
    except ClientError as error:
        raise JobError(f"the dead letters of {source.entity!r}: {error}") from error


def _dead_letters(job: Job, want: Want, source: Source, *, slim: bool = False) -> DataFrame:
    given = {"connection": want.connection, "entity": source.dead_letters}
    reader = job.spark.read.format("partibus").options(**given)
    if slim:
        reader = reader.option("includeProperties", "false").option("includeBody", "false")
        return reader.load().where("state = 'active'")
    return active(reader.load())


def _sources(want: Want) -> list[Source]:
    """Return the dead-letter queues and the targets of their messages."""
    client = connect(want.connection)
    try:
        entities = Entities(client)
        found = entities.get(want.entity)
        if found.kind == "topic":
            mark = f"{found.name}/subscriptions/".lower()
            names = [one.name for one in entities.list() if one.name.lower().startswith(mark)]
            if not names:
                raise JobError(f"the topic {want.entity!r} has no subscriptions, and so no dead letters")
            return [Source(name, want.to or found.name) for name in names]
        name = found.name
    except NotFound as error:
        raise JobError(f"there is no entity {want.entity!r}; `partibus entity list` shows what there is") from error
    except AccessDenied:
        name = want.entity.strip("/")  # to listen and to send is enough where the entity needs not be looked up
    finally:
        client.close()
    parts = name.split("/")
    topic = parts[0] if len(parts) == 3 and parts[1].lower() == "subscriptions" else name
    return [Source(name, want.to or topic)]


def _count(want: Want, source: Source) -> int:
    client = open_ranges(want.connection, source.dead_letters)
    try:
        return sum(one.messages for one in client.map().partitions)
    finally:
        client.close()


def _note(place: Place, state: Values, source: Source, step: str) -> None:
    state["steps"][source.entity] = step
    place.write(STATE, state)


def _spelled(asked: Values) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in asked.items() if value)


_ENDS = ("oldest", "newest")


def redrive_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    is_dry = not any(source["audit"] for source in found["sources"])
    return Page(
        title="Redrive",
        lead="Dead letters back to work."
        + range_of_times(one[end] for source in found["sources"] for one in source["reasons"] for end in _ENDS)
        + " A message that was dead-lettered after the job had read the queue is not in these figures.",
        verdict=Verdict(None, "DRY RUN", "Nothing was sent.") if is_dry else None,
        tiles=[
            (number(found["dead_letters"]), "dead letters"),
            (number(found["matched"]), "chosen"),
            (number(found["sent"]), "sent"),
        ],
        sections=[Section(source["entity"], _source(source)) for source in found["sources"]],
    )


def _source(source: Values) -> list[str]:
    sent, left = ("sent", "are left") if source["audit"] else ("would be sent", "would be left")
    sentences = (
        f"{source['matched']:,} of {source['dead_letters']:,} {sent} to {source['to']}; {source['left']:,} {left}."
    )
    blocks = [paragraph(sentences)]
    if source["audit"]:
        blocks.append(paragraph(f"Which message went when: {source['audit']}"))
    reasons = [
        [
            whole(text(one["reason"] or "none given")),
            number(one["messages"]),
            *(whole(moment(one[end])) for end in _ENDS),
        ]
        for one in source["reasons"]
    ]
    blocks.append(table(["reason", "chosen", "oldest enqueued", "newest enqueued"], reasons, (1,)))
    if source["samples"]:
        rows = [
            [number(one["partition_id"]), number(one["position"]), whole(code(one["message_id"])),
             whole(text(one["dead_letter_reason"] or "none given")), "" if one["body"] is None else code(one["body"])]
            for one in source["samples"]
        ]  # fmt: skip
        blocks.append(paragraph(f"Examples: {len(rows):,} of {source['matched']:,} chosen dead letters."))
        blocks.append(table(["partition", "position", "message", "reason", "body"], rows, (0, 1)))
    return blocks
