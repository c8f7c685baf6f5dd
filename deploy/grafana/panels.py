"""What the boards of this folder share: queries, panels and their layout, and the JSON file."""
import json
import pathlib
import sys

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTED = 'job=~"$job", instance=~"$instance"'
RATE = "[$__rate_interval]"
GRID = 24  # columns of Grafana's grid


def of(name, labels=""):
    """The selected series of a metric."""
    return f"switchyard_{name}{{{SELECTED}{', ' if labels else ''}{labels}}}"


def rate(name, labels="", by=""):
    """Increase per second, summed over all labels except `by`."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({of(name, labels)}{RATE}))"


def total(name, labels="", by="instance"):
    return f"sum by ({by}) ({of(name, labels)})"


def ratio(part, whole):
    return f"{part} / {whole}"


def quantile(q, name):
    return f"histogram_quantile({q}, {rate(name + '_bucket', by='le')})"


def quantiles(*names):
    """p50, p90 and p99 of histograms of seconds; each name is (metric, words before p50)."""
    return [(quantile(q, name), f"{words}p{q * 100:.0f}") for name, words in names for q in (0.5, 0.9, 0.99)]


def steps(first, *limits):
    """Thresholds: the first colour, then (value, colour) pairs."""
    return {"mode": "absolute", "steps": [{"color": first, "value": None}] +
            [{"color": color, "value": value} for value, color in limits]}


ANY_BAD = steps("green", (1, "red"))
NEUTRAL = steps("blue")


def panel(kind, title, about, unit, queries, width, height, defaults, options):
    targets = [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "editorMode": "code",
                "range": True} for i, (expr, legend) in enumerate(queries)]
    return {"type": kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets,
            "gridPos": {"w": width, "h": height}, "options": options,
            "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []}}


def graph(title, about, unit, queries, width=8, limits=None, stack=False, lowest=0, highest=None):
    """A time series. `limits`: thresholds, drawn as dashed lines."""
    defaults = {
        "color": {"mode": "palette-classic"}, "min": lowest, "thresholds": limits or steps("green"),
        "custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if stack else 8, "showPoints": "never",
                   "stacking": {"mode": "normal" if stack else "none", "group": "A"},
                   "thresholdsStyle": {"mode": "dashed" if limits else "off"}}}
    if highest is not None:
        defaults["max"] = highest
    options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, about, unit, queries, width, 8, defaults, options)


def stat(title, about, unit, expr, limits, width=3):
    options = {"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "value",
               "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return panel("stat", title, about, unit, [(expr, "")], width, 4,
                 {"color": {"mode": "thresholds"}, "thresholds": limits}, options)


def heatmap(title, about, name, width=8):
    options = {"calculate": False, "cellGap": 1, "filterValues": {"le": 1e-9}, "legend": {"show": True},
               "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64},
               "rowsFrame": {"layout": "auto"}, "tooltip": {"show": True, "yHistogram": False},
               "yAxis": {"axisPlacement": "left", "unit": "s"}}
    made = panel("heatmap", title, about, "short", [(f"sum by (le) (increase({of(name + '_bucket')}{RATE}))", "{{le}}")],
                 width, 8, {}, options)
    made["targets"][0]["format"] = "heatmap"
    return made


def states(title, about, queries, mappings, width=8):
    options = {"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.9,
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
               "tooltip": {"mode": "single", "sort": "none"}}
    shown = {str(value): {"text": text, "color": color, "index": value} for value, (text, color) in enumerate(mappings)}
    defaults = {"color": {"mode": "thresholds"}, "thresholds": steps("transparent"),
                "mappings": [{"type": "value", "options": shown}], "custom": {"fillOpacity": 80, "lineWidth": 0}}
    return panel("state-timeline", title, about, "none", queries, width, 8, defaults, options)


def arrange(rows):
    """All panels with ids and places, row by row. `rows`: {title: panels}."""
    made, y = [], 0
    for title, panels in rows.items():
        made.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": GRID, "h": 1}})
        x, y, high = 0, y + 1, 0
        for p in panels:
            place = p["gridPos"]
            if x + place["w"] > GRID:
                x, y, high = 0, y + high, 0
            place.update(x=x, y=y)
            x, high = x + place["w"], max(high, place["h"])
            made.append(p)
        y += high
    return [{"id": i, **p} for i, p in enumerate(made, 1)]


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
            "query": {"query": query, "refId": f"variable-{name}"}, "refresh": 2, "sort": 1, "includeAll": True, "multi": True,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "hide": 0, "options": [], "regex": ""}


def annotation(name, color, expr, title):
    return {"name": name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": color, "expr": expr,
            "titleFormat": title, "textFormat": "{{instance}}", "useValueForTime": False}


DATA_SOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0,
               "includeAll": False, "multi": False, "options": [], "regex": ""}


def board(uid, title, about, rows, variables, annotations):
    return {
        "uid": uid, "title": title, "tags": ["switchyard", "llm"], "schemaVersion": 38, "version": 1, "description": about,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [DATA_SOURCE, *variables]}, "annotations": {"list": annotations}, "links": [],
        "panels": arrange(rows),
    }


def write(script, made):
    """Writes the board to the JSON file of its uid, next to the script. With --check, fails if the file is not current."""
    file = pathlib.Path(script).with_name(f"{made['uid']}.json")
    text = json.dumps(made, indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not file.is_file() or file.read_text() != text:
            sys.exit(f"{file} is not current: run {pathlib.Path(script).name}")
    elif sys.argv[1:]:
        sys.exit(f"usage: {pathlib.Path(script).name} [--check]")
    else:
        file.write_text(text)
