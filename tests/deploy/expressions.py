"""The PromQL of deploy/: where it stands, and which metrics it names."""

import json
import re

import yaml

from processes import ROOT

# Names that Prometheus makes itself.
MADE_BY_PROMETHEUS = {"up"}
# A metric's name stands before a selector, a range, a closing bracket or an operator, and not before
# "(": that is a function. Labels in braces and quoted texts are taken out before.
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?![a-zA-Z0-9_:(])")
KEYWORDS = {"by", "without", "and", "or", "unless", "on", "ignoring", "group_left", "group_right",
            "bool", "offset", "sum", "inf", "nan"}


def dashboard():
    return json.loads((ROOT / "deploy/grafana/moxie.json").read_text())


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def of_dashboard():
    return [(f"{panel['title']}: {target['legendFormat']}", target["expr"])
            for panel in panels() for target in panel["targets"]]


def of_alerts():
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def metrics_in(expression):
    """The metrics that an expression reads."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}", "{}", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    text = re.sub(r"(?<![\w:])[0-9.]+(e[-+]?[0-9]+)?(?![\w:])", "", text)
    return {name for name in NAME.findall(text)
            if name not in KEYWORDS and not re.search(rf"(?<![\w:]){re.escape(name)}\s*\(", text)}


def samples_of(text):
    """The names of all samples in the text form of metrics: a histogram's _bucket, _sum and _count too."""
    return {re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line).group()
            for line in text.splitlines() if line and not line.startswith("#")}
