#!/usr/bin/env python3
"""The large join of examples/curve with DuckDB: same Parquet files, same threads, same limits.

    pip install duckdb
    cargo run --release --example curve -- --build-rows 0 --rounds 0     # makes the files
    python3 scripts/duckdb_peer.py > duckdb.json
    cargo run --release --example curve -- --duckdb duckdb.json

One JSON object a line: limit_mb (0 is none), seconds, rows, process_peak, or error. Each run is a
process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUERY = """
SELECT count(*), max(a.payload), max(b.payload)
FROM '{a}' AS a JOIN '{b}' AS b ON a.key = b.key
"""


def process_peak() -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def run(args: argparse.Namespace, limit: int) -> dict:
    import duckdb

    with tempfile.TemporaryDirectory() as scratch:
        connection = duckdb.connect()
        connection.execute(f"SET threads = {args.threads}")
        connection.execute(f"SET temp_directory = '{scratch}'")
        connection.execute("SET preserve_insertion_order = false")
        if limit:
            connection.execute(f"SET memory_limit = '{limit}MiB'")
        files = {t: args.data / f"{t}-{args.rows}.parquet" for t in "ab"}
        start = time.perf_counter()
        try:
            rows = connection.execute(QUERY.format(**files)).fetchone()[0]
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            return {"limit_mb": limit, "error": first, "process_peak": process_peak()}
        seconds = time.perf_counter() - start
        if rows != args.rows:
            return {"limit_mb": limit, "error": f"{rows} pairs came out"}
        return {
            "limit_mb": limit,
            "seconds": seconds,
            "rows": rows,
            "process_peak": process_peak(),
            "version": duckdb.__version__,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("target/curve"))
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limits", default="0,300,128,64", help="in MB, 0 is none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(run(args, args.one)))
        return
    for _ in range(args.rounds):
        for limit in args.limits.split(","):
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--one", limit],
                capture_output=True,
                text=True,
            )
            line = done.stdout.strip()
            if not line:
                line = json.dumps({"limit_mb": int(limit), "error": f"ended with {done.returncode}"})
            print(line, flush=True)


if __name__ == "__main__":
    main()
