#!/usr/bin/env python3
"""Joins the page's sources to one file, for the build:
    join.py OUT index.html page.css A.js B.js ...
Writes to OUT page.html, page.html.gz and page_data.h, which holds the page's tags and the policy
with the hashes of its style and script. Scripts are joined in the order given, as one module."""
import base64
import gzip
import hashlib
import pathlib
import sys


def policy_hash(text):
    digest = hashlib.sha256(text.encode()).digest()
    return "'sha256-" + base64.b64encode(digest).decode() + "'"


def policy_of(style, script):
    return "; ".join([
        "default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'",
        "form-action 'none'", "frame-ancestors 'none'", "style-src " + policy_hash(style),
        "script-src " + policy_hash(script)])


def page_of(frame, style, script):
    for mark, text in (("{{style}}", style), ("{{script}}", script)):
        if frame.count(mark) != 1:
            sys.exit(f"join.py: the page must hold {mark} once")
        frame = frame.replace(mark, text)
    return frame


def header_of(page, policy):
    tag = hashlib.sha256(page).hexdigest()[:24]
    return ("// Made by join.py.\n#pragma once\n\nnamespace moxie {\n"
            f"inline constexpr const char* kPageTag = \"\\\"{tag}\\\"\";\n"
            f"inline constexpr const char* kPageGzipTag = \"\\\"{tag}-gzip\\\"\";\n"
            f"inline constexpr const char* kPagePolicy = \"{policy}\";\n"
            "}  // namespace moxie\n")


def main(out, index, css, *scripts):
    frame, style, *parts = (pathlib.Path(name).read_text() for name in (index, css, *scripts))
    style, script = "\n" + style, "\n" + "\n".join(parts)
    page = page_of(frame, style, script).encode()
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.html").write_bytes(page)
    (folder / "page.html.gz").write_bytes(gzip.compress(page, mtime=0))
    (folder / "page_data.h").write_text(header_of(page, policy_of(style, script)))


if __name__ == "__main__":
    main(*sys.argv[1:])
