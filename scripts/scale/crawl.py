"""``python -m scripts.scale.crawl``: crawl, read and publish a whole virtual Hub in one go, and measure each phase.

The Hub runs in a process of its own (``scripts.scale.virtual_hub``), with the latency and bandwidth of a usual connection,
so that seconds of processor are those of the indexer alone. Results are JSON; a table goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.child import call
from scripts.loopback_hub.__main__ import rate_of
from scripts.scale.virtual_hub import running
from scripts.scale.virtual_layout import SHAPES
from scripts.scale.virtual_weights import Plan
from scripts.terminal import hub_environment

LATENCY = 0.03  # seconds before every answer
QUOTAS = {"resolvers": 5000, "api": 1000}


def measure(plan: Plan, bandwidth: float | None, atlas: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Build an atlas of a virtual Hub; figures by phase."""
    with running(plan, latency=LATENCY, bandwidth=bandwidth, quotas=QUOTAS) as hub:
        environment = hub_environment(hub.endpoint, atlas.with_name("huggingface"))
        hub.stats(reset=True)
        found: dict[str, Any] = call(
            build_in_phases, f"virtual/{plan.shape}", atlas, options, environment=environment
        ).output
        found["hub"] = hub.stats()
    files = [path for path in atlas.rglob("*") if path.is_file()]
    found["records_bytes"] = sum(path.stat().st_size for path in files if "records" in path.parts)
    return found


def build_in_phases(base: str, atlas: str, options: dict[str, Any]) -> dict[str, Any]:
    """One build, with wall and processor seconds of listing, reading and publishing."""
    from indexer.builds import build as module
    from indexer.builds.commands import build
    from indexer.builds.report import BuildEvent

    phases = {name: {"seconds": 0.0, "processor_seconds": 0.0} for name in ("listing", "base", "reading", "publishing")}
    current, since, used = "listing", time.monotonic(), 0.0

    def processor_seconds() -> float:
        return sum(
            part
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            for part in (resource.getrusage(who).ru_utime, resource.getrusage(who).ru_stime)
        )

    def enter(name: str) -> None:
        nonlocal current, since, used
        now, total = time.monotonic(), processor_seconds()
        phases[current]["seconds"] += now - since
        phases[current]["processor_seconds"] += total - used
        current, since, used = name, now, total

    def note(event: BuildEvent) -> None:
        if event.kind == "started":
            enter("reading")
        elif event.kind == "note" and "fetching" in event.message:
            enter("base")
        if event.kind == "note":
            print(event.message, file=sys.stderr)

    publish = module.Build.publish

    def timed_publish(*arguments: Any, **named: Any) -> None:
        before = current
        enter("publishing")
        publish(*arguments, **named)
        enter(before)

    module.Build.publish = timed_publish  # type: ignore[method-assign]
    report = build(base, atlas, progress=note, **options)
    enter("listing")
    return {"report": report.to_dict(), "phases": phases}


def text(found: dict[str, Any], models: int) -> str:
    """A table of the phases, and the totals by model."""
    report, lines = found["report"], []
    for name, phase in found["phases"].items():
        lines.append(f"{name:<12}{phase['seconds']:>10.1f} s {phase['processor_seconds']:>10.1f} s of processor")
    total = report["seconds"]
    requests = sum(kind["requests"] for kind in found["hub"].values())
    processor = sum(phase["processor_seconds"] for phase in found["phases"].values())
    lines += [
        f"{report['indexed']} indexed of {models} in {total:.0f} s: {3600 * report['indexed'] / total:,.0f} models an hour",
        f"{report['bytes_read'] / max(report['indexed'], 1) / 1e6:.2f} MB and {requests / models:.1f} requests a model",
        f"{processor / models:.3f} s of processor a model",
        f"{found['records_bytes'] / models / 1e6:.2f} MB of record a model",
    ]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.scale.crawl", description=__doc__)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="roberta-base", help="the architecture (default: %(default)s)")
    add("--models", type=int, default=10_000, help="default: %(default)s")
    add("--bandwidth", type=rate_of, default="20M", help="bytes a second in all (default: %(default)s)")
    add("--read", choices=("sample", "full"), default="sample", help="default: %(default)s")
    add("--workers", type=int)
    options = parser.parse_args()
    plan = Plan(options.shape, options.models)
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-crawl-") as temporary:
        chosen = {"read": options.read, "workers": options.workers}
        found = measure(plan, options.bandwidth, Path(temporary) / "atlas", chosen)
    print(text(found, options.models), file=sys.stderr)
    print(json.dumps(found["report"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
