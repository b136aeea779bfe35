"""``python -m scripts.scale.crawl``: crawl, read and publish a whole virtual Hub in one go, and measure each phase.

The Hub runs in a process of its own (``scripts.scale.virtual_hub``), with the latency and bandwidth of a usual connection,
so that seconds of processor are those of the indexer alone. Results are JSON; a table goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.scale.virtual_hub import running
from scripts.terminal import hub_environment


def measure(shape: str, models: int, latency: float, bandwidth: str, atlas: Path, options: list[str]) -> dict[str, Any]:
    """Build an atlas of a virtual Hub; figures by phase."""
    words = ["--shape", shape, "--models", str(models), "--latency", str(latency)]
    if bandwidth != "0":
        words += ["--bandwidth", bandwidth]
    with running(*words, "--quota", "resolvers=5000", "--quota", "api=1000") as hub:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        environment |= hub_environment(hub.endpoint, atlas.with_name("huggingface"))
        hub.stats(reset="1")
        done = subprocess.run(
            [sys.executable, "-m", "scripts.scale.crawl", "--child", f"virtual/{shape}", "--atlas", str(atlas), *options],
            env=environment, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        found["hub"] = hub.stats()
    files = [path for path in atlas.rglob("*") if path.is_file()]
    found["atlas_bytes"] = sum(path.stat().st_size for path in files)
    found["records_bytes"] = sum(path.stat().st_size for path in files if "records" in path.parts)
    return found


def build_in_phases(base: str, atlas: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What the child does: one build, with wall and processor seconds of listing, reading and publishing."""
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
    peaks = {
        who: resource.getrusage(getattr(resource, who)).ru_maxrss * 1024 for who in ("RUSAGE_SELF", "RUSAGE_CHILDREN")
    }
    return {"report": report.to_dict(), "phases": phases, "peak_bytes": peaks}


def text(found: dict[str, Any], models: int) -> str:
    """A table of the phases, and the totals by model."""
    report, lines = found["report"], []
    for name, phase in found["phases"].items():
        lines.append(f"{name:<12}{phase['seconds']:>10.1f} s {phase['processor_seconds']:>10.1f} s of processor")
    total = report["seconds"]
    requests = sum(kind["requests"] for phase in found["hub"]["phases"].values() for kind in phase.values())
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
    add("--shape", default="roberta-base", help="as in scripts.scale.virtual_hub (default: %(default)s)")
    add("--models", type=int, default=10_000, help="default: %(default)s")
    add("--latency", type=float, default=0.03, help="seconds before every answer (default: %(default)s)")
    add("--bandwidth", default="20M", help="bytes a second in all, 0 for no limit (default: %(default)s)")
    add("--read", choices=("sample", "full"), default="sample", help="default: %(default)s")
    add("--workers", type=int)
    add("--connections", type=int)
    add("--no-keep-factors", action="store_true")
    add("--atlas", type=Path, help="where (default: a temporary folder)")
    add("--json", type=Path, metavar="FILE", help="also write the results to this file")
    add("--child", metavar="BASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        chosen = {"read": options.read, "workers": options.workers, "connections": options.connections}
        chosen["keep_factors"] = not options.no_keep_factors
        print(json.dumps(build_in_phases(options.child, options.atlas, chosen)))
        return 0
    passed = ["--read", options.read]
    for name in ("workers", "connections"):
        if getattr(options, name) is not None:
            passed += [f"--{name}", str(getattr(options, name))]
    if options.no_keep_factors:
        passed.append("--no-keep-factors")
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-crawl-") as temporary:
        atlas = (options.atlas or Path(temporary) / "atlas").absolute()
        found = measure(options.shape, options.models, options.latency, options.bandwidth, atlas, passed)
    print(text(found, options.models), file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["report"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
