#!/usr/bin/env python3
"""Time to the first paint of the web page, over loopback in headless Chromium, and the size of its files.

    SWITCHYARD=build/release/switchyard bench/page_paint.py [RUNS]

Each run opens the page in a new browser, so no file is cached. The server idles.
"""
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))

from browser import Browser  # noqa: E402
from server import Server  # noqa: E402

FLAGS = ["--device", "cpu", "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--enable-expert-distribution-metrics",
         "--max-total-tokens", 4096, "--log-level", "warning"]
PAINTS = """new Promise(resolve => new PerformanceObserver((list, observer) => {
  const paint = list.getEntriesByName('first-contentful-paint')[0];
  if (paint) { observer.disconnect(); resolve(paint.startTime); }
}).observe({type: 'paint', buffered: true}))"""
BYTES = "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))" \
        ".reduce((sum, entry) => sum + entry.decodedBodySize, 0)"


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    times, size = [], 0
    with Server(ROOT / "models/yardling", *FLAGS) as server:
        for _ in range(runs):
            with Browser() as page:
                page.open(server.url + "/")
                times.append(page.run(PAINTS))
                size = page.run(BYTES)
    print(f"first contentful paint: median {statistics.median(times):.0f} ms, most {max(times):.0f} ms, {runs} browsers; "
          f"files {size / 1000:.1f} kB")


if __name__ == "__main__":
    main()
