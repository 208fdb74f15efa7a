"""The page of `paceline verify`: whether each strategy meets its guarantee, per number of workers and model."""

from __future__ import annotations

from paceline.present.page_parts import Column, Finding, Page, Table
from paceline.results.commands import Certificate, CertificateRow


def verify_page(certificate: Certificate, comm: str) -> Page:
    broken = [row for row in certificate.results if not row.meets_guarantee]
    count = len(certificate.results)
    met = "1 case meets its guarantee" if count == 1 else f"All {count} cases meet their guarantee"
    return Page(
        kind="Paceline verify",
        title=f"Strategies on comm {comm}",
        tables=[certificate_table(certificate)],
        tables_title="Certificate",
        findings=[] if broken else [Finding(f"{met} on comm {comm}.", kind="headline")],
    )


def certificate_table(certificate: Certificate) -> Table[CertificateRow]:
    columns: list[Column[CertificateRow]] = [
        Column(title="Strategy", short="strategy", text=lambda row: row.strategy, is_number=False),
        Column(title="Model", short="model", text=lambda row: row.model, is_number=False),
        Column(title="Workers", short="workers", text=lambda row: str(row.world_size)),
        Column(title="Guarantee", short="guarantee", text=lambda row: row.guarantee.lower(), is_number=False),
        Column(title="Error", short="error", text=lambda row: f"{row.max_relative_error:.1e}"),
        Column(title="Tolerance", short="tolerance", text=lambda row: f"{row.tolerance:.1e}", importance=60),
        Column(
            title="Bytes",
            short="bytes",
            text=lambda row: "ok" if row.bytes_as_predicted else "differ",
            is_number=False,
            importance=50,
        ),
        Column(title="Verdict", short="verdict", text=verdict, is_number=False),
    ]
    return Table(id="certificate", columns=columns, rows=certificate.results)


def verdict(row: CertificateRow) -> str:
    if not row.meets_guarantee:
        return "broken"
    return "certified" if row.passed else "no guarantee"


def broken_words(row: CertificateRow) -> str:
    """Describe where and how a strategy breaks its guarantee."""
    where = f"{row.strategy} on {row.world_size} workers with {row.model}"
    first = row.first_divergence
    if first is not None:
        place = f"step {first.step}, rank {first.rank}, tensor {first.tensor}"
        return f"{where}: {place} is off by {first.error:.1e}"
    if not row.bytes_as_predicted:
        return f"{where}: it sends more or fewer bytes than predicted"
    if row.guarantee != "NONE":
        return f"{where}: parameters did not change"
    return f"{where}: it has no guarantee, yet its parameters equal those of one process"
