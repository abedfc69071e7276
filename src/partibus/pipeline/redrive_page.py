"""What was redriven, as a page."""

from typing import Any

from partibus.pipeline.report.page import Page, Section, Verdict, code, number, paragraph, table, text

Values = dict[str, Any]


def redrive_page(found: Values) -> Page:
    """The page of `redrive_job.run`'s values."""
    is_dry = not any(source["audit"] for source in found["sources"])
    return Page(
        title="Redrive",
        lead="Dead letters back to work.",
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
    reasons = [[code(one["reason"] or "none given"), number(one["messages"])] for one in source["reasons"]]
    blocks.append(table(["reason", "chosen"], reasons, (1,)))
    if source["samples"]:
        rows = [
            [number(one["partition_id"]), number(one["position"]), code(one["message_id"]),
             text(one["dead_letter_reason"] or ""), code(one["body"] or "")]
            for one in source["samples"]
        ]  # fmt: skip
        blocks.append(table(["partition", "position", "message", "reason", "body"], rows, (0, 1)))
    return blocks
